"""The parser of all commands."""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from ogd.lab.cli import arguments, commands, completion
from ogd.lab.cli.arguments import add_plugin
from ogd.lab.plugins import load_plugin
from ogd.terminal import visible
from ogd.version import __version__

NEWLINE = "\n"

COMMANDS = [
    ("run", arguments.add_run, commands.run, "train methods on a benchmark and compare them"),
    (
        "reproduce",
        arguments.add_reproduce,
        commands.reproduce,
        "regenerate tables and figures of the paper beside its numbers",
    ),
    (
        "report",
        arguments.add_report,
        commands.report,
        "draw every table and figure that a folder of records has results for: one page, and a file of each",
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
    """Errors are one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        fail(re.sub(r"^argument ", "", message), 2)


class Help(argparse.HelpFormatter):
    """Shows a default where there is one to show."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        if not action.option_strings or default in (None, [], argparse.SUPPRESS) or isinstance(default, bool):
            return action.help
        return f"{action.help} (default: {' '.join(map(str, default)) if isinstance(default, list) else default})"


def fail(message: str, code: int) -> NoReturn:
    """Print one line, or as many as the message has, and leave."""
    print(f"ogd: {visible(message, keep=NEWLINE)}", file=sys.stderr)
    sys.exit(code)


def load_plugins(arguments: Sequence[str] | None) -> None:
    """Load the files that follow --plugin."""
    early = Parser(add_help=False, allow_abbrev=False)
    add_plugin(early)
    for file in early.parse_known_args(arguments)[0].plugin:
        load_plugin(file)


def parser() -> Parser:
    """Return the parser of all commands, with the options of everything that is in the catalogue by now."""
    about = "Orthogonal Gradient Descent: learn new tasks without forgetting the old ones."
    top = Parser(prog="ogd", description=about, formatter_class=Help)
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
    sub.add_argument("shell", choices=SHELLS, help="for bash: `source <(ogd completion bash)` in ~/.bashrc")
    sub.set_defaults(command=lambda options: print(completion.script(options.shell, top), end=""))
