"""`ogd completion SHELL`: a script for the shell, made from the parser."""

import argparse
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from ogd.lab.catalogue import BENCHMARKS, INITS, METHODS, MODELS
from ogd.lab.data import SOURCES
from ogd.lab.experiments import EXPERIMENTS
from ogd.lab.records.request import OPTIMIZERS

# what an argument without choices of its own may be; all others take numbers, texts or files
NAMES: dict[str, Iterable[str]] = {
    "backend": ("processes", "dask", "ray"),
    "benchmark": BENCHMARKS,
    "init": INITS,
    "method": METHODS,
    "model": MODELS,
    "name": SOURCES,
    "names": EXPERIMENTS,
    "optimizer": OPTIMIZERS,
}

BASH = """\
_ogd() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} command=${{COMP_WORDS[1]}} option= words= i
    for ((i = COMP_CWORD - 1; i > 1; i--)); do
        if [[ ${{COMP_WORDS[i]}} == -* ]]; then option=${{COMP_WORDS[i]}}; break; fi
    done
    if ((COMP_CWORD == 1)); then command= option=; fi
    if [[ $current == -* ]]; then option=; fi
    case "$command $option" in
{cases}
    esac
    if [[ $words ]]; then COMPREPLY=($(compgen -W "$words" -- "$current")); else COMPREPLY=(); fi
}}
complete -o default -F _ogd ogd
"""
ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"


@dataclass(frozen=True)
class Argument:
    """Flags, or none for a positional argument; the values it may take, or none if they cannot be listed."""

    flags: tuple[str, ...]
    values: tuple[str, ...]
    takes: bool  # a value
    help: str


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the script that completes `ogd` in bash, zsh or fish."""
    made = {name: [_read(action) for action in sub._actions] for name, sub in _commands(parser).items()}
    top = [_read(action) for action in parser._actions if action.option_strings]
    if shell == "fish":
        return _fish(made, top)
    return (ZSH if shell == "zsh" else "") + _bash(made, top)


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (subparsers,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(subparsers.choices)


def _read(action: argparse.Action) -> Argument:
    shown = action.metavar if isinstance(action.metavar, str) else ""
    values = action.choices or NAMES.get(action.dest) or (shown.split("|") if "|" in shown else ())
    also = ("all",) if action.dest == "names" else ()
    return Argument(
        flags=tuple(action.option_strings),
        values=(*map(str, values), *also),
        takes=action.nargs != 0,
        help=(action.help or "").split(" (default")[0].replace("%%", "%"),
    )


def _bash(commands: dict[str, list[Argument]], top: list[Argument]) -> str:
    cases = [(["' '"], [*commands, *(flag for argument in top for flag in argument.flags)])]
    for name, arguments in commands.items():
        flags = [flag for argument in arguments for flag in argument.flags]
        first = [value for argument in arguments if not argument.flags for value in argument.values]
        for argument in arguments:
            if argument.flags and argument.takes:  # values, or files where none are listed
                cases.append(([f"'{name} {flag}'" for flag in argument.flags], list(argument.values)))
        cases.append(([f"'{name} '*"], [*first, *flags]))
    lines = [f"        {'|'.join(patterns)}) words={shlex.quote(' '.join(words))} ;;" for patterns, words in cases]
    return BASH.format(cases="\n".join(lines))


def _fish(commands: dict[str, list[Argument]], top: list[Argument]) -> str:
    nobody = "-n __fish_use_subcommand"
    lines = [f"complete -c ogd -f {nobody} -a {name}" for name in commands]
    lines += [f"complete -c ogd {nobody} {_fish_argument(argument)}" for argument in top]
    for name, arguments in commands.items():
        seen = f"-n '__fish_seen_subcommand_from {name}'"
        lines += [
            f"complete -c ogd {seen} {_fish_argument(argument)}"
            for argument in arguments
            if argument.flags or argument.values
        ]
    return "\n".join(lines) + "\n"


def _fish_argument(argument: Argument) -> str:
    words = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in argument.flags]
    if argument.values:
        words.append(f"-x -a {_fish_quoted(' '.join(argument.values))}")
    elif argument.takes:
        words.append("-r")
    return " ".join([*words, f"-d {_fish_quoted(argument.help)}"])


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
