"""What the command line takes."""

import argparse
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

from ogd import catalogue


class Parser(argparse.ArgumentParser):
    """Errors are one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        fail(re.sub(r"^argument ", "", message), 2)


class Help(argparse.HelpFormatter):
    """Shows a default where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        if not action.option_strings or default is None or default is False or default is argparse.SUPPRESS:
            return action.help
        text = " ".join(map(str, default)) if isinstance(default, list) else default
        return f"{action.help} (default: {text})"


def fail(message: str, code: int) -> NoReturn:
    """Print one line and leave."""
    print(f"ogd: {message}", file=sys.stderr)
    sys.exit(code)


def add_run(sub: Parser) -> None:
    add_benchmark(sub).add_argument(
        "--method", metavar="NAME", nargs="+", default=["ogd"], help=f"one or more of {', '.join(catalogue.METHODS)}"
    )
    add_schedule(sub, runs=5).add_argument(
        "--curve-every", type=int, metavar="N", help="keep the accuracy on the tasks seen every N steps"
    )
    own = sub.add_argument_group("what a method can be told")
    for option, methods in method_options().items():
        default = "" if option.tuned else f" (default: {option.default})"
        flags = [f"--{name.replace('_', '-')}" for name in (option.name, option.formerly) if name]
        own.add_argument(
            *flags,
            type=option.kind,
            metavar="|".join(option.choices) if option.choices else "N",
            help=f"{', '.join(methods)}: {option.help}{default}",
        )
    add_crew(sub)
    add_output(sub)


def add_benchmark(sub: Parser) -> argparse._ArgumentGroup:
    what = sub.add_argument_group("what to run")
    what.add_argument(
        "--benchmark", metavar="NAME", default="rotated", help=f"one of {', '.join(catalogue.BENCHMARKS)}"
    )
    what.add_argument("--tasks", type=int, metavar="N", help="how many tasks (default: 5)")
    what.add_argument(
        "--angles", type=float, metavar="DEGREES", nargs="+", help="rotated: degrees, one a task (default: 0 10 20 …)"
    )
    what.add_argument(
        "--partition", metavar="CLASSES", help="split: the classes of each task, as 01/23/45/67/89, or random:SEED"
    )
    what.add_argument(
        "--heads", metavar="KIND", help="split: multi, a head a task, or single, one softmax over all (default: multi)"
    )
    what.add_argument("--data", metavar="DIR", help="a folder of IDX files (default: $OGD_DATA, or MNIST)")
    return what


def add_schedule(sub: Parser, runs: int) -> argparse._ArgumentGroup:
    how = sub.add_argument_group("how to train it")
    how.add_argument("--runs", type=int, metavar="N", default=runs, help="independent runs")
    how.add_argument("--epochs", type=int, metavar="N", default=5, help="epochs a task")
    how.add_argument("--batch-size", type=int, metavar="N", default=10, help="examples a step")
    how.add_argument("--lr", type=float, default=1e-3, help="learning rate")
    how.add_argument("--momentum", type=float, metavar="M", default=0.0, help="of gradient descent")
    how.add_argument(
        "--hidden", type=int, metavar="N", nargs="+", default=[100, 100], help="units of each hidden layer"
    )
    how.add_argument(
        "--init", metavar="NAME", default="pytorch", help=f"initial weights: one of {', '.join(catalogue.INITS)}"
    )
    how.add_argument("--seed", type=int, metavar="N", default=0, help="run r draws from (seed, r) alone")
    return how


def method_options() -> dict[catalogue.Option[Any], list[str]]:
    """Return every option that some method takes, and which methods do."""
    options: dict[catalogue.Option[Any], list[str]] = {}
    for name, entry in catalogue.METHODS.items():
        for option in entry.options:
            options.setdefault(option, []).append(name)
    return options


def add_reproduce(sub: Parser) -> None:
    sub.add_argument("names", nargs="+", metavar="NAME", help="tables and figures, as `ogd list` shows them, or all")
    sub.add_argument("--quick", action="store_true", help="1/5 of the epochs at 5 × the learning rate, 2 runs")
    sub.add_argument("--runs", type=int, metavar="N", help="how many runs (default: the paper's number)")
    sub.add_argument("--seed", type=int, metavar="N", default=0, help="run r draws from (seed, r) alone")
    add_crew(sub)
    add_output(sub)


def add_tune(sub: Parser) -> None:
    sub.add_argument("what", metavar="METHOD", choices=["ewc"], help="ewc: its λ")
    add_benchmark(sub)
    add_schedule(sub, runs=2)
    sub.add_argument(
        "--grid", type=float, nargs="+", metavar="L", default=[1, 3, 10, 30, 100, 300, 1000], help="values to try"
    )
    sub.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="folder for the record")


def add_report(sub: Parser) -> None:
    sub.add_argument(
        "dir", nargs="?", type=Path, default=Path("runs"), metavar="DIR", help="folder of records (default: runs)"
    )
    sub.add_argument("--out", type=Path, metavar="DIR", help="folder for the page and its files (default: DIR/report)")
    sub.add_argument("--open", action="store_true", help="open the page in a browser")


def add_bench(sub: Parser) -> None:
    records = sub.add_mutually_exclusive_group()
    records.add_argument("--save", type=Path, metavar="FILE", help="keep the measurement as a record")
    records.add_argument("--show", type=Path, metavar="FILE", help="show a record instead of measuring")
    forms = sub.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print the medians as JSON instead of a table")
    forms.add_argument("--markdown", action="store_true", help="print the table as Markdown")


def add_crew(sub: Parser) -> None:
    group = sub.add_argument_group("who works")
    group.add_argument("--jobs", type=int, metavar="N", help="units at once (default: one a core)")
    group.add_argument(
        "--backend", metavar="NAME", default="processes", help="processes of this machine, or dask, or ray"
    )
    group.add_argument("--address", help="dask, ray: where its cluster is (default: a cluster of this machine)")


def add_output(sub: Parser) -> None:
    group = sub.add_argument_group("what comes out")
    group.add_argument(
        "--out",
        type=Path,
        default=Path("runs"),
        metavar="DIR",
        help="folder of records; what it holds is not run again",
    )
    forms = group.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print the records as JSON instead of a table")
    forms.add_argument("--markdown", action="store_true", help="print the table as Markdown")
