"""The command line. Torch is imported only once there is something to train."""

import argparse
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ogd import catalogue
from ogd.arguments import Help, Parser, add_bench, add_report, add_reproduce, add_run, add_tune, fail, method_options
from ogd.experiments import EXPERIMENTS
from ogd.records.record import RunRecord, to_json
from ogd.version import __version__

if TYPE_CHECKING:
    from ogd.experiments.backends import Crew

SETTINGS = (
    "tasks", "angles", "partition", "heads", "hidden", "epochs", "batch_size", "lr", "momentum", "seed", "init",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; every error is one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without “±” still shows the rest
    options = parser().parse_args(arguments)
    if options.command is None:
        parser().print_help()
        return
    warnings.formatwarning = lambda message, *_: f"ogd: {message}\n"
    try:
        options.command(options)
    except KeyboardInterrupt:
        goes_on = "; the same command goes on from the last checkpoint, and what is finished is kept"
        fail(f"interrupted{goes_on if options.command in (run, reproduce, tune) else ''}", 130)
    except ValueError as error:
        fail(re.sub(r"^([a-z_]+): ", lambda match: f"{option(match[1])}: ", str(error)), 2)
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error), 1)
    except (ArithmeticError, MemoryError, RuntimeError) as error:
        fail(str(error) or type(error).__name__, 1)


def option(argument: str) -> str:
    """Return what an argument of the library is called on the command line."""
    return {"names": "NAME", "dir": "DIR"}.get(argument, f"--{argument.replace('_', '-')}")


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
        ("report", add_report, report, "draw one page of all tables and figures that records answer, and their files"),
        ("tune", add_tune, tune, "choose a method's setting on a validation split of the training data"),
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


def run(options: argparse.Namespace) -> None:
    from ogd.data import load
    from ogd.experiments import resolve, runner
    from ogd.reporting import overview

    crew = crew_of(options)
    dataset = load(options.data)
    methods = list(dict.fromkeys(options.method))
    settings = {name: getattr(options, name) for name in (*SETTINGS, "curve_every")}
    requests = [
        resolve(options.benchmark, method, dataset, **settings, **own)
        for method, own in own_options(options, methods).items()
    ]
    runner.check(requests, options.runs, dataset)
    outcome = runner.run([(request, options.runs) for request in requests], dataset, options.out, crew)
    whole = [records for records in outcome.found if len(records) == options.runs]
    if options.json:
        show_json([record for records in outcome.found for record in records])
    elif whole:
        overview(whole).show(options.markdown)
        for records in whole:
            print(f"records: {records[0].path(options.out).parent}", file=sys.stderr)
    complain(outcome.failures)


def own_options(options: argparse.Namespace, methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Give each method its own options; one that none of them takes is an error."""
    told: dict[str, dict[str, Any]] = {method: {} for method in methods}
    for option, takers in method_options().items():
        value = getattr(options, option.name)
        if value is not None and not set(takers) & set(methods):
            raise ValueError(f"{option.name}: is for {' and '.join(takers)}, not for {' and '.join(methods)}")
        for method in set(takers) & set(methods):
            told[method][option.name] = value
    return told


def reproduce(options: argparse.Namespace) -> None:
    from ogd.data import load
    from ogd.experiments import reproduce as reproduction
    from ogd.reporting import compare, table

    crew = crew_of(options)
    chosen = reproduction.choose(options.names, quickly=options.quick, runs=options.runs)
    done, failures = reproduction.perform(chosen, load("mnist"), options.out, seed=options.seed, crew=crew)
    if options.json:
        show_json([record for found in done for record in found.records()])
    else:
        for found in done:
            table(compare(found)).show(options.markdown)
        print(f"records: {options.out}; the page: ogd report {options.out}", file=sys.stderr)
    complain(failures)


def crew_of(options: argparse.Namespace) -> "Crew":
    """Return who shall work, or raise a ValueError that says why it cannot."""
    from ogd.experiments.backends import Crew

    crew = Crew(options.backend, options.address or None, options.jobs)
    crew.check()
    return crew


def complain(failures: Sequence[str]) -> None:
    """Leave with an error if a unit failed; what could be shown has been."""
    if failures:
        count = f"{len(failures)} unit{'s' if len(failures) > 1 else ''} failed"
        raise RuntimeError("\n".join([f"{count}; what is finished is kept:", *failures]))


def report(options: argparse.Namespace) -> None:
    from ogd.experiments.runner import check_writable
    from ogd.reporting import report as reports

    out = options.out or options.dir / "report"
    found = reports.comparisons(options.dir)
    check_writable([out])
    path = reports.write(found, options.dir, out)
    print(path)
    if options.open:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            print("there is no browser to open it with", file=sys.stderr)


def tune(options: argparse.Namespace) -> None:
    from ogd.data import load, validation
    from ogd.experiments import resolve, runner
    from ogd.records import tuning
    from ogd.reporting import scores

    dataset = load(options.data)
    held_out = validation(dataset)
    settings = {name: getattr(options, name) for name in SETTINGS}
    request = resolve(options.benchmark, options.what, dataset, **settings)
    runner.check([request], options.runs, held_out)
    for value in options.grid:
        if not 0 <= value < float("inf"):
            raise ValueError(f"grid: must be numbers of at least 0, not {value}")
    if len(set(options.grid)) < len(options.grid):
        raise ValueError("grid: has a value twice")
    runner.check_writable([options.out])
    from ogd.experiments.tune import tune_ewc

    found = tune_ewc(request, options.grid, options.runs, held_out, options.out)
    scores(found).show()
    if found.choice is None:
        raise ArithmeticError("every value of the grid diverged: try smaller ones")
    print(f"chosen: λ = {found.choice:g}; record: {tuning.path_of(request, options.out)}")
    if len(found.grid) > 1 and found.choice in (min(found.grid), max(found.grid)):
        print("the choice is at the edge of the grid: a wider one may find better", file=sys.stderr)


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

    if options.save:
        from ogd.experiments.runner import check_writable

        check_writable([options.save.parent])
    if options.show:
        ratios = speed.read(options.show)
    else:
        from ogd.experiments import bench as measurements

        ratios, left_out = measurements.measure()
        for reason in left_out:
            print(reason, file=sys.stderr)
    if options.save:
        speed.write(ratios, options.save)
    if options.json:
        print(json.dumps({ratio.key: ratio.median for ratio in ratios}, indent=1))
    else:
        speeds(ratios).show(options.markdown)


def show_json(records: Sequence[RunRecord]) -> None:
    print(json.dumps([to_json(record) for record in records], indent=1))
