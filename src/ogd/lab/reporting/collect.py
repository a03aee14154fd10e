"""A folder of records → what it answers of every experiment. Finds, never trains."""

from pathlib import Path

from ogd.checks import ArgumentError
from ogd.lab.data import Dataset, load
from ogd.lab.experiments import EXPERIMENTS, Experiment, quick
from ogd.lab.experiments.runs import ExperimentRuns, find_runs
from ogd.lab.records import Request, RunRecord, find
from ogd.lab.records.folder import places


def collect(folder: Path) -> list[ExperimentRuns]:
    """Return every experiment with the records of seed 0 that `folder` holds of it.

    The profile is the paper's scale, unless less than half of its settings are there and the quick profile has
    some: experiments share settings, so a few records at full scale may have come from a neighbour.
    """
    if folder.is_file():
        raise ArgumentError("dir", f"{str(folder)!r} is a file; give the folder that holds records")
    if not folder.is_dir():
        raise ArgumentError(
            "dir", f"there is no folder {str(folder)!r}; `ogd reproduce all --quick --out {folder}` makes it"
        )
    if not places(folder):
        raise ArgumentError(
            "dir",
            f"{str(folder)!r} holds no records; `ogd run --out {folder}` makes some, and "
            f"`ogd reproduce all --quick --out {folder}` those of the paper's tables and figures",
        )
    return found_in(folder)


def found_in(folder: Path) -> list[ExperimentRuns]:
    """Return the same, also where there is nothing."""
    dataset = load("mnist")
    return [_chosen(experiment, dataset, folder) for experiment in EXPERIMENTS.values()]


def _chosen(experiment: Experiment, dataset: Dataset, folder: Path) -> ExperimentRuns:
    full = _found(experiment, dataset, folder)
    if full.share >= 0.5:
        return full
    fast = _found(quick(experiment), dataset, folder)
    return fast if fast.share else full


def _found(experiment: Experiment, dataset: Dataset, folder: Path) -> ExperimentRuns:
    def runs_of(request: Request, runs: int) -> list[RunRecord]:
        there = find(folder, request)
        return [there[r] for r in range(runs) if r in there]

    return find_runs(experiment, dataset, runs_of)
