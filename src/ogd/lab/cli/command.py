"""One command, from its arguments to its end. Torch is imported only once there is something to train."""

import io
import os
import re
import sys
import warnings
from argparse import Namespace
from collections.abc import Sequence
from typing import NoReturn

from ogd.lab import requirements
from ogd.lab.cli.arguments import flag
from ogd.lab.cli.parser import fail, load_plugins, parser
from ogd.lab.cli.stopping import Terminated
from ogd.lab.plugins import load_plugin
from ogd.terminal import visible


def command(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; every error is one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without “±” still shows the rest
    warnings.formatwarning = lambda message, *_: f"ogd: {visible(message)}\n"
    options = Namespace(resumes=False)
    try:
        load_plugins(arguments)  # first, for the parser has the options of what they register
        options = parser().parse_args(arguments)
        for file in getattr(options, "plugin", []):  # those of an abbreviated --plugin
            load_plugin(file)
        absent = requirements.missing() if options.needs_laboratory else ""
        if absent:
            fail(absent, 2)
        options.command(options)
    except (Exception, KeyboardInterrupt) as error:
        tell(error, resumes=options.resumes)


def tell(error: BaseException, *, resumes: bool) -> NoReturn:
    """Say in one line what went wrong, and leave; what is no error of a user's is raised again."""
    match error:
        case KeyboardInterrupt():
            how = ": run the same command again to resume from the last checkpoint; what is finished is kept"
            fail(f"interrupted{how if resumes else ''}", Terminated.code if isinstance(error, Terminated) else 130)
        case ValueError():
            fail(re.sub(r"^([a-z_]+): ", lambda match: f"{shown(match[1])}: ", visible(error)), 2)
        case BrokenPipeError():  # whoever read our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        case OSError(filename=str() as name, strerror=str() as reason):
            fail(visible(f"{name}: {reason}"), 1)
        case OSError() | ArithmeticError() | MemoryError() | RuntimeError():
            fail(str(error) or type(error).__name__, 1)
    raise error


def shown(argument: str) -> str:
    """Return what an argument of the library is called on the command line."""
    return {"name": "NAME", "names": "NAME", "dir": "DIR"}.get(argument) or flag(argument)
