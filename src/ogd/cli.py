"""The command line. Torch is imported only once there is something to train."""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ogd import catalogue
from ogd.experiments.paper import EXPERIMENTS
from ogd.records.record import RunRecord, to_json
from ogd.version import __version__


class Parser(argparse.ArgumentParser):
    """Errors are one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        fail(re.sub(r"^argument ", "", message), 2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; every error is one line and an exit code."""
    options = parser().parse_args(arguments)
    if options.command is None:
        parser().print_help()
        return
    try:
        options.command(options)
    except KeyboardInterrupt:
        fail("interrupted; finished runs are kept, and the same command goes on from there", 130)
    except ValueError as error:
        fail(re.sub(r"^([a-z_]+): ", lambda match: f"{option(match[1])}: ", str(error)), 2)
    except (ArithmeticError, OSError) as error:
        fail(str(error), 1)


def option(argument: str) -> str:
    """Return what an argument of the library is called on the command line."""
    return "NAME" if argument == "names" else f"--{argument.replace('_', '-')}"


def fail(message: str, code: int) -> NoReturn:
    """Print one line and leave."""
    print(f"ogd: {message}", file=sys.stderr)
    sys.exit(code)


def parser() -> Parser:
    """Return the parser of all commands."""
    top = Parser(
        prog="ogd", description="Orthogonal Gradient Descent: learn new tasks without forgetting the old ones."
    )
    top.add_argument("--version", action="version", version=f"ogd {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    top.set_defaults(command=None)
    for name, add, command, summary in [
        ("run", add_run, run, "train methods on a benchmark and compare them"),
        ("reproduce", add_reproduce, reproduce, "regenerate tables and figures of the paper beside its numbers"),
        ("list", None, show_list, "list benchmarks, methods, data sets, tables and figures"),
        ("bench", add_bench, bench, "measure this machine: ratios taken side by side in one process"),
    ]:
        sub = commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", formatter_class=Help
        )
        sub.set_defaults(command=command)
        if add is not None:
            add(sub)
    return top


class Help(argparse.HelpFormatter):
    """Shows a default where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        if not action.option_strings or default is None or default is False or default is argparse.SUPPRESS:
            return action.help
        text = " ".join(map(str, default)) if isinstance(default, list) else default
        return f"{action.help} (default: {text})"


def add_run(sub: Parser) -> None:
    what = sub.add_argument_group("what to run")
    what.add_argument(
        "--benchmark", metavar="NAME", default="rotated", help=f"one of {', '.join(catalogue.BENCHMARKS)}"
    )
    what.add_argument(
        "--method", metavar="NAME", nargs="+", default=["sgd"], help=f"one or more of {', '.join(catalogue.METHODS)}"
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
    how = sub.add_argument_group("how to train it")
    how.add_argument("--runs", type=int, metavar="N", default=5, help="independent runs, trained side by side")
    how.add_argument("--epochs", type=int, metavar="N", default=5, help="epochs a task")
    how.add_argument("--batch-size", type=int, metavar="N", default=10, help="examples a step")
    how.add_argument("--lr", type=float, default=1e-3, help="learning rate")
    how.add_argument(
        "--hidden", type=int, metavar="N", nargs="+", default=[100, 100], help="units of each hidden layer"
    )
    how.add_argument("--seed", type=int, metavar="N", default=0, help="run r draws from (seed, r) alone")
    how.add_argument("--curve-every", type=int, metavar="N", help="keep the accuracy on the tasks seen every N steps")
    add_output(sub)


def add_reproduce(sub: Parser) -> None:
    sub.add_argument("names", nargs="+", metavar="NAME", help="tables and figures, as `ogd list` shows them, or all")
    sub.add_argument("--quick", action="store_true", help="1/5 of the epochs at 5 × the learning rate, 2 runs")
    sub.add_argument("--runs", type=int, metavar="N", help="how many runs (default: the paper's number)")
    sub.add_argument("--seed", type=int, metavar="N", default=0, help="run r draws from (seed, r) alone")
    add_output(sub)


def add_bench(sub: Parser) -> None:
    sub.add_argument("--save", type=Path, metavar="FILE", help="keep the measurement as a record")
    sub.add_argument("--show", type=Path, metavar="FILE", help="show a record instead of measuring")
    forms = sub.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print the medians as JSON instead of a table")
    forms.add_argument("--markdown", action="store_true", help="print the table as Markdown")


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


def run(options: argparse.Namespace) -> None:
    from ogd.data import load
    from ogd.experiments import runner
    from ogd.records import resolve
    from ogd.reporting import overview

    dataset = load(options.data)
    names = ("tasks", "angles", "partition", "heads", "hidden", "epochs", "batch_size", "lr", "seed", "curve_every")
    settings = {name: getattr(options, name) for name in names}
    requests = [resolve(options.benchmark, method, dataset, **settings) for method in dict.fromkeys(options.method)]
    runner.check(requests, options.runs, dataset, options.out)
    answers = [runner.run(request, options.runs, dataset, options.out) for request in requests]
    if options.json:
        show_json([record for records in answers for record in records])
        return
    overview(answers).show(options.markdown)
    for records in answers:
        print(f"records: {records[0].path(options.out).parent}", file=sys.stderr)


def reproduce(options: argparse.Namespace) -> None:
    from ogd.data import load
    from ogd.experiments import reproduce as reproduction
    from ogd.reporting import comparison

    chosen, missing = reproduction.choose(options.names, quickly=options.quick, runs=options.runs)
    kept = []
    for experiment, answers in reproduction.perform(chosen, load("mnist"), options.out, options.seed):
        if not options.json:
            comparison(experiment, answers).show(options.markdown)
        kept += [record for _, found in answers for records in found for record in records]
    if options.json:
        show_json(kept)
    else:
        print(f"records: {options.out}", file=sys.stderr)
    if missing:
        print(f"left out: {', '.join(missing)}; this version has no method for them", file=sys.stderr)


def show_list(options: argparse.Namespace) -> None:
    groups: dict[str, dict[str, str]] = {
        "benchmarks": {name: entry.summary for name, entry in catalogue.BENCHMARKS.items()},
        "methods": {name: entry.summary for name, entry in catalogue.METHODS.items()},
        "data sets": catalogue.DATASETS,
    }
    for kind in ("table", "figure"):
        groups[f"{kind}s"] = {e.name: f"{e.where}. {e.title}" for e in EXPERIMENTS.values() if e.kind == kind}
    for group, entries in groups.items():
        print(group)
        for name, summary in entries.items():
            print(f"  {name:18} {summary}")


def bench(options: argparse.Namespace) -> None:
    from ogd.records import speed
    from ogd.reporting import speeds

    if options.show:
        ratios = speed.read(options.show)
    else:
        from ogd.experiments import bench as measurements

        ratios = measurements.measure()
    if options.save:
        speed.write(ratios, options.save)
    if options.json:
        print(json.dumps({ratio.key: ratio.median for ratio in ratios}, indent=1))
    else:
        speeds(ratios).show(options.markdown)


def show_json(records: Sequence[RunRecord]) -> None:
    print(json.dumps([to_json(record) for record in records], indent=1))
