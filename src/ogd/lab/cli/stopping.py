"""SIGTERM ends a command as Ctrl-C does, and a process that is leaving needs no traceback for either."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""

    code = 143


@contextmanager
def like_ctrl_c() -> Iterator[None]:
    """Inside, SIGTERM raises `Terminated`; afterwards it does what it did before."""

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


def leaving() -> None:
    """From here on Ctrl-C ends the process without a word; Python would print a traceback of whatever cleans up."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
