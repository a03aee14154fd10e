"""The experiments by name. `register` adds one; the paper's and ours come in by the same door."""

from ogd.lab.experiments.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {}
ALL = "all"  # on the command line: every experiment but those that must be named


def register(experiment: Experiment) -> Experiment:
    """Add an experiment to those that are run and reported by name, and return it.

    Examples:
        >>> register(EXPERIMENTS["rotated"])
        Traceback (most recent call last):
        ValueError: name: 'rotated' is taken; choose another
    """
    if experiment.name in (ALL, *EXPERIMENTS):
        raise ValueError(f"name: {experiment.name!r} is taken; choose another")
    EXPERIMENTS[experiment.name] = experiment
    return experiment
