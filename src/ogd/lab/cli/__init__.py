"""The command line. `main` imports what it needs, so that Ctrl-C is an error of one line from the first moment on."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; every error is one line and an exit code. Without arguments it takes the process's own."""
    try:
        from ogd.lab.cli.signals import let_ctrl_c_end_silently, sigterm_like_ctrl_c

        with sigterm_like_ctrl_c():
            from ogd.lab.cli.parser import execute

            try:
                execute(arguments)
            finally:
                if arguments is None:  # the process ends with its command
                    let_ctrl_c_end_silently()
    except KeyboardInterrupt as stop:
        print("ogd: interrupted", file=sys.stderr)
        sys.exit(getattr(stop, "code", 130))
