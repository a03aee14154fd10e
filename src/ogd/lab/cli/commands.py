"""The commands. Each imports what it needs, so that those which only inform answer at once."""

import inspect
import json
import shlex
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ogd.checks import ArgumentError, check_name
from ogd.files import check_writable
from ogd.lab import catalogue
from ogd.lab.cli.arguments import benchmark_settings, flag, method_options, tunable
from ogd.lab.data import SOURCES, fetch
from ogd.lab.experiments import EXPERIMENTS, resolve
from ogd.lab.records.folder import place_of
from ogd.lab.records.record import RunRecord, to_json
from ogd.visible_text import visible

if TYPE_CHECKING:
    from ogd.lab.experiments.backends import Backend


def run(options: Namespace) -> None:
    from ogd.lab.data import load
    from ogd.lab.experiments import runner
    from ogd.lab.reporting import overview, tensorboard
    from ogd.lab.reporting.tables import can_draw, sparklines

    if options.tensorboard:
        tensorboard.check()
        check_writable([options.tensorboard], "tensorboard")
    backend = backend_of(options)
    dataset = load(options.data)
    methods = list(dict.fromkeys(options.method))
    requests = [
        resolve(options.benchmark, method, dataset, **settings(options), **own)
        for method, own in own_options(options, methods).items()
    ]
    outcome = runner.run([(request, options.runs) for request in requests], dataset, options.out, backend)
    whole = [records for records in outcome.found if len(records) == options.runs]
    if options.tensorboard:
        tensorboard.write([record for records in outcome.found for record in records], options.tensorboard)
    if options.json:
        show_json([record for records in outcome.found for record in records])
    elif whole:
        overview(whole).show(options.markdown)
        if can_draw(sys.stdout) and not options.markdown and whole[0][0].request.tasks > 1:
            sparklines(whole).show()
        for records in whole:
            print(f"records: {visible(place_of(records[0].request, options.out))}", file=sys.stderr)
        print(f"to draw them: ogd report {visible(shlex.quote(str(options.out)))}", file=sys.stderr)
    complain(outcome.failures)


def settings(options: Namespace) -> dict[str, Any]:
    """Return what the options say of a request, except the method's own: arguments of `resolve`."""
    named = [p.name for p in inspect.signature(resolve).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return {name: getattr(options, name) for name in (*named, *benchmark_settings()) if hasattr(options, name)}


def own_options(options: Namespace, methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Give each method its own options; one that none of them takes is an error."""
    for method in methods:
        check_name("method", method, catalogue.METHODS)
    given: dict[str, dict[str, Any]] = {method: {} for method in methods}
    for name, takers in method_options().items():
        value = getattr(options, name, None)
        if value is not None and not set(takers) & set(methods):
            raise ArgumentError(name, f"is for {' and '.join(takers)}, not for {' and '.join(methods)}")
        for method in set(takers) & set(methods):
            given[method][name] = value
    return given


def reproduce(options: Namespace) -> None:
    from ogd.lab.data import load, outline
    from ogd.lab.experiments import runner
    from ogd.lab.experiments.experiment import choose
    from ogd.lab.reporting import compare, table

    backend = backend_of(options)
    chosen = choose(options.names, quickly=options.quick, runs=options.runs)
    others = [] if options.data is None else [load(options.data)]
    if others and others[0] not in [outline(name) for experiment in chosen for name in experiment.data]:
        raise ArgumentError(
            "data", f"{options.data} holds {others[0].name}, which none of these tables and figures needs"
        )
    done, failures = runner.reproduce(
        chosen, load("mnist"), options.out, others=others, seed=options.seed, backend=backend
    )
    if options.json:
        show_json([record for found in done for record in found.records()])
    else:
        for found in done:
            table(compare(found)).show(options.markdown)
        out = visible(shlex.quote(str(options.out)))
        print(f"records: {out}; to draw them: ogd report {out}", file=sys.stderr)
    complain(failures)


def backend_of(options: Namespace) -> "Backend":
    """Return where to run, or raise a ValueError that says why nothing can run there."""
    from ogd.lab.experiments.backends import Backend

    backend = Backend(options.backend, options.address or None, options.jobs)
    backend.check()
    return backend


def complain(failures: Sequence[str]) -> None:
    """Leave with an error if a training failed; what could be shown has been."""
    if failures:
        count = f"{len(failures)} training{'s' if len(failures) > 1 else ''} failed"
        raise RuntimeError("\n".join([f"{count}; what is finished is kept:", *map(visible, failures)]))


def report(options: Namespace) -> None:
    from ogd.lab.reporting import report as reports

    out = options.out or options.dir / "report"
    found = reports.comparisons(options.dir)
    check_writable([out])
    path = reports.write(found, options.dir, out)
    print(visible(path))
    if options.open:
        import webbrowser

        if not webbrowser.open(path.resolve().as_uri()):
            print("there is no browser to open it with", file=sys.stderr)


def verify(options: Namespace) -> None:
    from ogd.lab.cli.documents import stale, unchecked
    from ogd.lab.reporting.verify import verify

    verdict = verify(options.dir)
    problems = verdict.problems or stale(options.dir)
    if problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''} in {visible(options.dir)}"
        raise RuntimeError("\n".join([f"{count}:", *map(visible, problems)]))
    print(f"{verdict}: all can be read, and none is missing")
    if skipped := unchecked(options.dir):
        print(visible(skipped), file=sys.stderr)


def tune(options: Namespace) -> None:
    from ogd.lab.data import load, validation
    from ogd.lab.experiments.resolve import check_fit
    from ogd.lab.experiments.runner import check_runs
    from ogd.lab.records import tuning
    from ogd.lab.reporting import scores

    option = tunable()[options.method]
    grid = checked_grid(option, options.grid or option.grid)
    dataset = load(options.data)
    held_out = validation(dataset)
    (own,) = own_options(options, [options.method]).values()
    request = resolve(options.benchmark, options.method, dataset, **settings(options), **own)
    check_runs(options.runs)
    check_fit(request, held_out)
    check_writable([options.out])
    from ogd.lab.experiments.tune import tune

    found = tune(request, option.name, grid, options.runs, held_out, options.out)
    scores(found).show()
    if found.choice is None:
        raise ArithmeticError(
            "with every value of the grid a run diverged or ended dead: try smaller values, or a smaller --lr"
        )
    print(f"chosen: {flag(option.name)} {found.choice:g}; record: {visible(tuning.path_of(found, options.out))}")
    if len(found.grid) > 1 and found.choice in (min(found.grid), max(found.grid)):
        print("the chosen value is at the edge of the grid: a wider grid may have a better one", file=sys.stderr)


def checked_grid(option: catalogue.Option[Any], grid: Sequence[float]) -> list[float]:
    """Return the values to try, or raise a ValueError if the option cannot take one or one is there twice."""
    for value in grid:
        try:
            option.check(value)
        except ValueError as error:
            raise ArgumentError("grid", str(error)) from error
    if len(set(grid)) < len(grid):
        raise ArgumentError("grid", "has a value twice")
    return [float(value) for value in grid]


def show_list(options: Namespace) -> None:
    groups: dict[str, dict[str, str]] = {
        "benchmarks": {name: entry.summary for name, entry in catalogue.BENCHMARKS.items()},
        "methods": {name: entry.summary for name, entry in catalogue.METHODS.items()},
        "models": catalogue.MODELS,
        "initial weights": catalogue.INITS,
        "data sets": catalogue.DATASETS,
        "data sets to fetch with `ogd data NAME --out DIR`": {name: source.summary for name, source in SOURCES.items()},
    }
    for kind in ("table", "figure"):
        groups[f"{kind}s"] = {e.name: f"{e.where}. {e.title}" for e in EXPERIMENTS.values() if e.kind == kind}
    for group, entries in groups.items():
        print(group)
        for name, summary in entries.items():
            print(visible(f"  {name:18} {summary}"))


def fetch_data(options: Namespace) -> None:
    new = fetch(options.name, options.out, options.archive)
    print(f"{visible(options.out)}: {'written, and' if new else 'is there already, and'} its digest is right")


def bench(options: Namespace) -> None:
    from ogd.lab.records import speed
    from ogd.lab.reporting import speeds

    if options.save:
        check_writable([options.save.parent])
    if options.show:
        ratios = speed.read(options.show)
    else:
        from ogd.lab import bench as measurements

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
