"""The command line. `main` imports what it needs, so that Ctrl-C is an error of one line from the first moment on."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; every error is one line and an exit code. Without arguments it takes the process's own."""
    try:
        from ogd.lab.cli.stopping import leaving, like_ctrl_c

        with like_ctrl_c():
            from ogd.lab.cli.command import command

            try:
                command(arguments)
            finally:
                if arguments is None:  # the process ends with its command
                    leaving()
    except KeyboardInterrupt as stop:
        print("ogd: interrupted", file=sys.stderr)
        sys.exit(getattr(stop, "code", 130))
