"""Records → event files for TensorBoard, which is an extra: `pip install 'ogd[tensorboard]'`."""

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from time import time

from ogd.checks import ArgumentError
from ogd.lab.records import RunRecord


def check() -> None:
    """Raise a ValueError where TensorBoard is not installed."""
    if find_spec("tensorboard") is None:
        raise ArgumentError("tensorboard", "the package is not installed; `pip install tensorboard` installs it")


def write(records: Iterable[RunRecord], folder: Path) -> None:
    """Write the accuracies of each run to a folder of its own under `folder`, in place of what an earlier call wrote.

    Over the tasks learned: the accuracy on each task and their average. Over the steps, where a run has a curve: the
    accuracy on each task that has begun.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for record in records:
        path = record.path(folder).with_suffix("")
        for old in path.glob("events.out.tfevents.*"):
            old.unlink()
        writer = EventFileWriter(str(path))
        for name, step, value in scalars(record):
            summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
            writer.add_event(Event(wall_time=time(), step=step, summary=summary))
        writer.close()


def scalars(record: RunRecord) -> Iterator[tuple[str, int, float]]:
    """Return what there is to show of a run: a name, how many tasks or steps, and a fraction."""
    for done, row in enumerate(record.accuracy):
        for task, value in enumerate(row):
            yield f"after each task/task {task + 1}", done, value
        yield "after each task/average", done, sum(row) / len(row)
    if record.curve:
        for step, values in zip(record.curve.steps, record.curve.accuracy, strict=True):
            for task, fraction in enumerate(values):
                if fraction is not None:
                    yield f"while training/task {task + 1}", step, fraction
