"""One command, from its arguments to its end. Torch is imported only once there is something to train."""

import io
import os
import re
import signal
import sys
import threading
import warnings
from argparse import Namespace
from collections.abc import Sequence
from typing import NoReturn

from ogd import laboratory
from ogd.cli.arguments import flag
from ogd.cli.parser import fail, load_plugins, parser
from ogd.plugins import load_plugin
from ogd.terminal import visible


def command(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; every error is one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without “±” still shows the rest
    warnings.formatwarning = lambda message, *_: f"ogd: {visible(message)}\n"
    options = Namespace(resumes=False)
    try:
        _end_like_ctrl_c()
        load_plugins(arguments)  # first, for the parser has the options of what they register
        options = parser().parse_args(arguments)
        for file in getattr(options, "plugin", []):  # those of an abbreviated --plugin
            load_plugin(file)
        absent = laboratory.missing() if options.needs_laboratory else ""
        if absent:
            fail(absent, 2)
        options.command(options)
    except (Exception, KeyboardInterrupt) as error:
        tell(error, resumes=options.resumes)


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


def _end_like_ctrl_c() -> None:
    """On SIGTERM say how to resume and leave nothing running, as on Ctrl-C."""

    def terminated(*_: object) -> NoReturn:
        raise Terminated

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminated)


def tell(error: BaseException, *, resumes: bool) -> NoReturn:
    """Say in one line what went wrong, and leave; what is no error of a user's is raised again."""
    match error:
        case KeyboardInterrupt():
            how = ": run the same command again to resume from the last checkpoint; what is finished is kept"
            fail(f"interrupted{how if resumes else ''}", 143 if isinstance(error, Terminated) else 130)
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
