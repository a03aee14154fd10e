"""The command line. `main` imports what it needs, so that Ctrl-C is an error of one line from the first moment on."""

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

__all__ = ["main"]


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""

    code = 143


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; every error is one line and an exit code. Without arguments it takes the process's own."""
    try:
        with sigterm_like_ctrl_c():
            from ogd.lab.cli.parser import execute

            try:
                execute(arguments)
            finally:
                if arguments is None:  # the process ends with its command
                    _let_ctrl_c_end_silently()
    except KeyboardInterrupt as stop:
        print("ogd: interrupted", file=sys.stderr)
        sys.exit(getattr(stop, "code", 130))


@contextmanager
def sigterm_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` inside the block; afterwards it does what it did before."""

    def terminated(*_: object) -> NoReturn:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _let_ctrl_c_end_silently() -> None:
    """Let Ctrl-C end the process without a message; Python would print a traceback of its own cleaning up."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
