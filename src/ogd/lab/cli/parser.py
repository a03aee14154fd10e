"""From the arguments to a command, and from an error to one line. Torch is imported only once something is trained."""

import argparse
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ogd.checks import ArgumentError, nearest
from ogd.lab import missing_packages
from ogd.lab.cli import arguments, commands, completion
from ogd.lab.cli.arguments import add_plugin, flag
from ogd.lab.cli.signals import Terminated
from ogd.lab.plugins import load_plugin
from ogd.version import __version__
from ogd.visible_text import visible

NEWLINE = "\n"

COMMANDS = [
    ("run", arguments.add_run, commands.run, "train methods on a benchmark and compare them"),
    (
        "reproduce",
        arguments.add_reproduce,
        commands.reproduce,
        "regenerate tables and figures of the paper next to its numbers",
    ),
    (
        "report",
        arguments.add_report,
        commands.report,
        "draw every table and figure that a folder of records has results for, as one page and as a file each",
    ),
    (
        "verify",
        arguments.add_verify,
        commands.verify,
        "check that every record of a folder can be read and none is missing; in the project's own results/, also that "
        "the documents say the same",
    ),
    (
        "tune",
        arguments.add_tune,
        commands.tune,
        "choose the value of a method's option on a validation split of the training data",
    ),
    (
        "list",
        arguments.add_list,
        commands.show_list,
        "list benchmarks, methods, models, initial weights, data sets, tables and figures",
    ),
    ("data", arguments.add_data, commands.fetch_data, "fetch a data set into a folder, and check it by its digest"),
    ("bench", arguments.add_bench, commands.bench, "measure this machine's speed: ratios taken side by side"),
]
RESUMABLE = ("run", "reproduce", "tune")
LIBRARY = ("list",)  # commands that need no package of the laboratory
SHELLS = ("bash", "zsh", "fish")


class Parser(argparse.ArgumentParser):
    """Errors are one line that names the help, exit code 2."""

    def error(self, message: str) -> NoReturn:
        message = re.sub(r"^argument ", "", message)
        for kind, words in (("float", "a number"), ("int", "a whole number")):
            message = re.sub(rf"invalid {kind} value: (.*)$", rf"must be {words}, not \1", message)
        fail(f"{message}{' See' if message.endswith('?') else '; see'} {self.prog} --help", 2)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            what = action.dest if action.option_strings else action.metavar or action.dest
            raise argparse.ArgumentError(None, _unknown(str(what).lower(), str(value), list(action.choices)))


class CommandParser(Parser):
    """Also refuses what it does not know, by the name of the command."""

    def parse_known_args(self, *arguments: Any, **more: Any) -> Any:
        options, unknown = super().parse_known_args(*arguments, **more)
        if unknown:
            flags = [one for action in self._actions for one in action.option_strings]
            name, *_ = [one for one in unknown if one.startswith("-")] or unknown
            self.error(
                _unknown("option", name.partition("=")[0], flags) if name.startswith("-") else f"unexpected {name!r}"
            )
        return options, unknown


def _unknown(what: str, name: str, names: Sequence[str]) -> str:
    near = nearest(name, names)
    some = "" if what == "option" else f"; it is one of {', '.join(names)}"
    return f"there is no {what} {name!r}" + (f"; did you mean {near!r}?" if near else some)


class Help(argparse.HelpFormatter):
    """Shows a default where there is one to show, and the values of an option once."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if len(action.option_strings) < 2 or action.nargs == 0:
            return super()._format_action_invocation(action)
        return f"{', '.join(action.option_strings)} {self._format_args(action, action.dest.upper())}"

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        if not action.option_strings or default in (None, [], argparse.SUPPRESS) or isinstance(default, bool):
            return action.help
        return f"{action.help} (default: {' '.join(map(str, default)) if isinstance(default, list) else default})"


def execute(arguments: Sequence[str] | None = None) -> None:
    """Parse the arguments and carry out their command; every error is one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without “±” still shows the rest
    warnings.formatwarning = lambda message, *_: f"ogd: {visible(message)}\n"
    options = argparse.Namespace(resumes=False)
    try:
        load_plugins(arguments)  # first, for the parser has the options of what they register
        options = parser().parse_args(arguments)
        for file in getattr(options, "plugin", []):  # those of an abbreviated --plugin
            load_plugin(file)
        absent = missing_packages() if options.needs_laboratory else ""
        if absent:
            fail(absent, 2)
        options.command(options)
    except (Exception, KeyboardInterrupt) as error:
        _report_error(error, resumes=options.resumes)


def _report_error(error: BaseException, *, resumes: bool) -> NoReturn:
    """Print in one line what went wrong, and exit; raise again what is not a user's error."""
    match error:
        case KeyboardInterrupt():
            how = ": run the same command again to resume from the last checkpoint; what is finished is kept"
            fail(f"interrupted{how if resumes else ''}", Terminated.code if isinstance(error, Terminated) else 130)
        case ArgumentError(name=name, message=message):
            fail(visible(f"{_on_command_line(name)}: {message}"), 2)
        case ValueError():
            fail(visible(error), 2)
        case BrokenPipeError():  # whoever read our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        case OSError(filename=str() as name, strerror=str() as reason):
            fail(visible(f"{name}: {reason}"), 1)
        case OSError() | ArithmeticError() | MemoryError() | RuntimeError():
            fail(str(error) or type(error).__name__, 1)
    raise error


def _on_command_line(argument: str) -> str:
    """Return the name of a Python argument on the command line."""
    return {"name": "NAME", "names": "NAME", "dir": "DIR"}.get(argument) or flag(argument)


def fail(message: str, code: int) -> NoReturn:
    """Print one line, or as many as the message has, and leave."""
    print(f"ogd: {visible(message, keep=NEWLINE)}", file=sys.stderr)
    sys.exit(code)


def load_plugins(arguments: Sequence[str] | None) -> None:
    """Load the files that follow --plugin."""
    early = Parser(prog="ogd", add_help=False, allow_abbrev=False)
    add_plugin(early)
    for file in early.parse_known_args(arguments)[0].plugin:
        load_plugin(file)


def parser() -> Parser:
    """Return the parser of all commands, with the options of everything that is in the catalogue by now."""
    about = "Learn new tasks without forgetting the old ones: the laboratory of ogd."
    top = CommandParser(prog="ogd", description=about, formatter_class=Help)
    top.add_argument("--version", action="version", version=f"ogd {__version__}")
    top.set_defaults(command=lambda _: top.print_help(), resumes=False, needs_laboratory=False)
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND")
    for name, add, command, summary in COMMANDS:
        sub = subparsers.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", formatter_class=Help
        )
        sub.set_defaults(command=command, resumes=name in RESUMABLE, needs_laboratory=name not in LIBRARY)
        add(sub)
    _add_completion(subparsers.add_parser, top)
    return top


def _add_completion(add: Callable[..., argparse.ArgumentParser], top: Parser) -> None:
    summary = "print a script with which your shell completes commands, options and names"
    sub = add("completion", help=summary, description=f"{summary[0].upper()}{summary[1:]}.", formatter_class=Help)
    sub.add_argument(
        "shell",
        metavar="SHELL",
        choices=SHELLS,
        help="bash, zsh or fish; for bash, write `source <(ogd completion bash)` into ~/.bashrc",
    )
    sub.set_defaults(command=lambda options: print(completion.script(options.shell, top), end=""))
