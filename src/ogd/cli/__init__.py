"""The command line. `main` imports what it needs, so that Ctrl-C is an error of one line from the first moment on."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; every error is one line and an exit code."""
    try:
        from ogd.cli.command import command

        command(arguments)
    except KeyboardInterrupt:
        print("ogd: interrupted", file=sys.stderr)
        sys.exit(130)
