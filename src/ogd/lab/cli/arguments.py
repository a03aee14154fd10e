"""The arguments of each command. Names, kinds and defaults come from the catalogue and from `Schedule`."""

from argparse import ArgumentParser, ArgumentTypeError, _ArgumentGroup
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ogd.lab.benchmarks.rules import TASKS
from ogd.lab.catalogue import BENCHMARKS, DEFAULT_INIT, DEFAULT_MODEL, INITS, METHODS, MODELS, Option
from ogd.lab.data import SOURCES
from ogd.lab.records.request import HIDDEN, OPTIMIZERS, Schedule

METAVARS = {int: "N", float: "X", str: "TEXT"}
NOUNS = {"choose": "choose-examples", "every": "project-every"}  # flags of options whose name alone says too little
Owners = dict[str, dict[str, Option[Any]]]  # an option's name → who takes it → the option


def flag(argument: str) -> str:
    """Return the flag of an argument.

    Examples:
        >>> flag("batch_size"), flag("every")
        ('--batch-size', '--project-every')
    """
    return f"--{NOUNS.get(argument, argument.replace('_', '-'))}"


def path(text: str) -> Path:
    """Return the path that an argument gives; an empty one, as of a variable that is not set, is an error."""
    if not text:
        raise ArgumentTypeError("must not be empty; for the current folder give .")
    return Path(text)


def benchmark_settings() -> Owners:
    """Return every setting that some benchmark takes, and which benchmarks do."""
    return _owners({name: entry.settings for name, entry in BENCHMARKS.items()})


def method_options() -> Owners:
    """Return every option that some method takes, and which methods do."""
    return _owners({name: entry.options for name, entry in METHODS.items()})


def tunable() -> dict[str, Option[Any]]:
    """Return the option that `ogd tune` chooses, for each method that has one."""
    return {name: option for name, entry in METHODS.items() for option in entry.options if option.grid}


def add_run(sub: ArgumentParser) -> None:
    add_benchmark(sub).add_argument(
        "--method", metavar="NAME", nargs="+", default=["ogd"], help=f"one or more of {', '.join(METHODS)}"
    )
    add_schedule(sub, runs=5).add_argument(
        "--curve-every", type=int, metavar="N", help="record the accuracy on the tasks seen so far every N steps"
    )
    add_options(sub.add_argument_group("options of the methods"), method_options())
    add_backend(sub)
    add_output(sub).add_argument(
        "--tensorboard",
        type=path,
        metavar="DIR",
        help="also write event files for TensorBoard there",
    )
    add_plugin(sub)


def add_reproduce(sub: ArgumentParser) -> None:
    sub.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="tables and figures, as `ogd list` shows them or as the paper numbers them (table1, figure3), or all",
    )
    sub.add_argument("--quick", action="store_true", help="1/5 of the epochs at 5 × the learning rate, 2 runs")
    sub.add_argument("--runs", type=int, metavar="N", help="how many runs (default: the paper's number)")
    sub.add_argument("--data", metavar="DIR", help="the folder of a data set that a table names besides MNIST")
    add_seed(sub)
    add_backend(sub)
    add_output(sub)
    add_plugin(sub)


def add_report(sub: ArgumentParser) -> None:
    sub.add_argument(
        "dir", nargs="?", type=path, default=Path("runs"), metavar="DIR", help="folder of records (default: runs)"
    )
    sub.add_argument("--out", type=path, metavar="DIR", help="folder for the page and its files (default: DIR/report)")
    sub.add_argument("--open", action="store_true", help="open the page in a browser")
    add_plugin(sub)


def add_verify(sub: ArgumentParser) -> None:
    sub.add_argument(
        "dir", nargs="?", type=path, default=Path("runs"), metavar="DIR", help="folder of records (default: runs)"
    )
    add_plugin(sub)


def add_tune(sub: ArgumentParser) -> None:
    options = tunable()
    owners = ", ".join(f"{name} ({flag(option.name)})" for name, option in options.items())
    sub.add_argument(
        "method", metavar="METHOD", type=_tuned, choices=list(options), help=f"whose option to choose: {owners}"
    )
    add_benchmark(sub)
    add_schedule(sub, runs=2)
    taken = {name: tuple(one for one in METHODS[name].options if one is not option) for name, option in options.items()}
    add_options(sub.add_argument_group("other options of the methods"), _owners(taken))
    values = "; ".join(f"{name}: {' '.join(map(str, option.grid))}" for name, option in options.items())
    sub.add_argument("--grid", type=float, nargs="+", metavar="X", help=f"values to try (default: {values})")
    sub.add_argument("--out", type=path, default=Path("runs"), metavar="DIR", help="folder for the record")
    add_plugin(sub)


def _tuned(name: str) -> str:
    """Return the name of a method; that of one without an option to choose is an error."""
    if name in METHODS and name not in tunable():
        raise ArgumentTypeError(f"{name} has no option to choose; {', '.join(tunable())} have one")
    return name


def add_list(sub: ArgumentParser) -> None:
    add_plugin(sub)


def add_data(sub: ArgumentParser) -> None:
    sub.add_argument("name", metavar="NAME", help=f"one of {', '.join(SOURCES)}")
    sub.add_argument("--out", type=path, required=True, metavar="DIR", help="folder for the data set")
    sub.add_argument("--archive", type=path, metavar="FILE", help="the package's archive, if you have it already")


def add_bench(sub: ArgumentParser) -> None:
    records = sub.add_mutually_exclusive_group()
    records.add_argument("--save", type=path, metavar="FILE", help="keep the measurement as a record")
    records.add_argument("--show", type=path, metavar="FILE", help="show a record instead of measuring")
    forms = sub.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print the medians as JSON instead of a table")
    forms.add_argument("--markdown", action="store_true", help="print the table as Markdown")


def add_benchmark(sub: ArgumentParser) -> _ArgumentGroup:
    group = sub.add_argument_group("what to run")
    group.add_argument("--benchmark", metavar="NAME", default="rotated", help=f"one of {', '.join(BENCHMARKS)}")
    group.add_argument("--tasks", type=int, metavar="N", help=f"how many tasks (default: {TASKS})")
    add_options(group, benchmark_settings())
    group.add_argument("--data", metavar="DIR", help="a folder of IDX files (default: $OGD_DATA, or MNIST)")
    return group


def add_schedule(sub: ArgumentParser, runs: int) -> _ArgumentGroup:
    group = sub.add_argument_group("how to train")
    group.add_argument("--runs", type=int, metavar="N", default=runs, help="independent runs")
    group.add_argument("--epochs", type=int, metavar="N", default=Schedule.epochs, help="epochs per task")
    group.add_argument("--batch-size", type=int, metavar="N", default=Schedule.batch_size, help="examples per step")
    group.add_argument("--lr", type=float, metavar="X", default=Schedule.lr, help="learning rate")
    group.add_argument(
        "--optimizer", metavar="NAME", default=Schedule.optimizer, help=f"one of {', '.join(OPTIMIZERS)}"
    )
    group.add_argument("--momentum", type=float, metavar="X", default=Schedule.momentum, help="momentum of sgd")
    group.add_argument("--keep-optimizer", action="store_true", help="keep Adam's moments from one task to the next")
    group.add_argument("--model", metavar="NAME", default=DEFAULT_MODEL, help=f"one of {', '.join(MODELS)}")
    units = ", ".join(f"{' '.join(map(str, units))} for {model}" for model, units in HIDDEN.items())
    group.add_argument(
        "--hidden", type=int, metavar="N", nargs="+", help=f"units of each hidden linear layer (default: {units})"
    )
    group.add_argument(
        "--init", metavar="NAME", default=DEFAULT_INIT, help=f"initial weights: one of {', '.join(INITS)}"
    )
    group.add_argument("--no-biases", dest="biases", action="store_false", help="layers without biases")
    add_seed(group)
    return group


def add_seed(group: ArgumentParser | _ArgumentGroup) -> None:
    group.add_argument(
        "--seed", type=int, metavar="N", default=Schedule.seed, help="run r draws its numbers from (seed, r) alone"
    )


def add_options(group: _ArgumentGroup, owners: Owners) -> None:
    """Add a flag per name. Where several take an option of one name, each default and help text names its owners."""
    for name, takers in owners.items():
        texts: dict[str, list[str]] = {}
        for owner, option in takers.items():
            texts.setdefault(_help_text(option), []).append(owner)
        first, *_ = takers.values()
        former = dict.fromkeys(flag(option.formerly) for option in takers.values() if option.formerly)
        former |= {f"--{name}": None} if name in NOUNS else {}
        group.add_argument(
            flag(name),
            *former,
            dest=name,
            type=first.kind,
            nargs="+" if first.several else None,
            metavar="|".join(first.choices) or first.metavar or METAVARS[first.kind],
            help="; ".join(f"{', '.join(who)}: {text}" for text, who in texts.items()).replace("%", "%%"),
        )


def add_backend(sub: ArgumentParser) -> None:
    group = sub.add_argument_group("where to run")
    group.add_argument("--jobs", type=int, metavar="N", help="trainings at once (default: one per core)")
    group.add_argument(
        "--backend", metavar="NAME", default="processes", help="processes of this machine, or dask, or ray"
    )
    group.add_argument(
        "--address", help="address of the dask or ray cluster (default: start a cluster on this machine)"
    )


def add_output(sub: ArgumentParser) -> _ArgumentGroup:
    group = sub.add_argument_group("output")
    group.add_argument(
        "--out",
        type=path,
        default=Path("runs"),
        metavar="DIR",
        help="folder of records; runs that it holds are not run again",
    )
    forms = group.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print the records as JSON instead of a table")
    forms.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    return group


def add_plugin(sub: ArgumentParser) -> None:
    sub.add_argument(
        "--plugin",
        metavar="FILE.py",
        action="append",
        default=[],
        help="load methods, benchmarks and experiments of your own from a file; can be given several times",
    )


def _owners(taken: Mapping[str, tuple[Option[Any], ...]]) -> Owners:
    owners: Owners = {}
    for owner, options in taken.items():
        for option in options:
            owners.setdefault(option.name, {})[owner] = option
    return owners


def _help_text(option: Option[Any]) -> str:
    if option.tuned:
        values = ", ".join(f"{value:g} on {benchmark}" for benchmark, value in option.tuned)
        return f"{option.help} (default: as tuned, {values})"
    return option.help if option.default is None else f"{option.help} (default: {option.default})"
