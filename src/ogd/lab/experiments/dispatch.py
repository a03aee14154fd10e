"""Units → their records: trained by workers, with one display for all of them."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ogd.files import temporary_folder
from ogd.lab import catalogue
from ogd.lab.benchmarks.task import make_benchmark
from ogd.lab.data import Dataset, mapped
from ogd.lab.experiments.backends import Backend, Stream
from ogd.lab.experiments.plan import Unit
from ogd.lab.models.build import stack_of
from ogd.lab.plugins import load_plugin, loaded
from ogd.lab.progress import Display, Reporter
from ogd.lab.records import Curve, Request, RunRecord
from ogd.lab.records.record import environment
from ogd.lab.training import Checkpoint, History, Result, first_task, train

BEAT = 0.5  # seconds between two signs of life of a process
TRIES = 3  # how often workers may fail before we give up
MOST_SHOWN = 2  # units that the display names


class Beacon:
    """Writes the progress of a unit to a file, which the driver reads where they share a disk."""

    def __init__(self, path: Path) -> None:
        self.path, self.steps, self.done, self.last = path, 1, 0, 0.0

    def start(self, total: int) -> None:
        self.steps, self.done = max(total, 1), 0

    def advance(self, done: int, note: str) -> None:
        self.done += done
        now = time.monotonic()
        if now - self.last >= BEAT:
            self.last = now
            with contextlib.suppress(OSError):  # a full disk must not stop the work
                self.path.write_text(f"{self.done / self.steps:.4f} {note}", encoding="utf-8")


def dispatch(
    firsts: Sequence[Unit], work: Sequence[Unit], dataset: Dataset, out: Path, backend: Backend
) -> Iterator[tuple[Unit, list[RunRecord] | str]]:
    """Carry out all units and yield each with its records, or with what went wrong, in any order."""
    out = out.resolve()  # a worker may have another working directory
    shared: dict[str, History | str] = {}
    with (
        temporary_folder() as folder,
        backend.start() as stream,
        _Watch([*firsts, *work], folder) as watch,
    ):
        if backend.name == "processes":  # they share a disk, and read it by parts as they need it
            dataset = mapped(dataset, folder)
        calls = [(unit, dataset, out, watch.beacon(unit), loaded()) for unit in firsts]
        for unit, answer in _answers(stream, _carry_out, calls):
            watch.finished.add(unit.key)
            shared[unit.first_key] = answer
        able = []
        for unit in work:
            first = shared[unit.first_key] if unit.part == "rest" else None
            if isinstance(first, str):
                watch.finished.add(unit.key)
                yield unit, f"in the first task, which methods share: {first}"
            else:
                able.append((unit, dataset, out, watch.beacon(unit), loaded(), first))
        for unit, answer in _answers(stream, _carry_out, able):
            watch.finished.add(unit.key)
            yield unit, answer


def _answers(stream: Stream, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
    """Yield the answer to every call.

    If a unit fails, its error is its answer. So an exception here means that a worker failed; perhaps it was killed.
    Its units are started again, from their checkpoints where there are any.
    """
    left = {call[0].key: call for call in calls}
    for tries in range(TRIES):
        try:
            for unit, answer in stream(function, list(left.values())):
                del left[unit.key]
                yield unit, answer
            return
        except Exception as error:
            if tries == TRIES - 1:
                again = "run the same command again to resume, perhaps with fewer --jobs"
                raise RuntimeError(f"workers failed {TRIES} times ({_in_one_line(error)}); {again}") from error


def _carry_out(
    unit: Unit,
    dataset: Dataset,
    out: Path,
    beacon: Path,
    plugins: Sequence[str],
    first: History | None = None,
) -> tuple[Unit, list[RunRecord] | History | str]:
    try:
        _load(plugins, unit)
        report, kept = Beacon(beacon), _checkpoint_folder(out, beacon)
        if unit.part == "first":
            return unit, _train_first(unit, dataset, report, kept)
        return unit, list(_train_unit(unit, dataset, report, kept, first))
    except Exception as error:  # whatever it is, the other units go on
        return unit, _in_one_line(error)


def _train_unit(
    unit: Unit, dataset: Dataset, report: Reporter, out: Path | None = None, first: History | None = None
) -> Iterator[RunRecord]:
    """Train a unit's runs and yield their records, resuming from its checkpoint under `out` or after its first task."""
    request = unit.request
    benchmark = make_benchmark(request, dataset)
    method = catalogue.METHODS[request.method].load()(**request.options)
    model, schedule, checkpoint = stack_of(request, benchmark, unit.group), request.schedule, _checkpoint(unit, out)
    result = train(benchmark, model, method, first=first, checkpoint=checkpoint, progress=report, **asdict(schedule))
    yield from records_of(request, result)


def records_of(request: Request, result: Result) -> Iterator[RunRecord]:
    """Yield the record of each run of a training of this request."""
    for r, number in enumerate(result.runs):
        yield RunRecord(
            request=request,
            run=number,
            accuracy=result.accuracy[r].tolist(),
            curve=_curve(result, r) if request.curve_every else None,
            seconds=round(result.seconds, 2),
            lockstep=len(result.runs),
            environment=environment(),
            dead=bool(result.dead[r]),
        )


def _train_first(unit: Unit, dataset: Dataset, report: Reporter, out: Path | None = None) -> History:
    """Train the first task of a unit's runs, for every unit that shares it."""
    benchmark = make_benchmark(unit.request, dataset)
    model = stack_of(unit.request, benchmark, unit.group)
    return first_task(benchmark, model, unit.request.schedule, report, _checkpoint(unit, out))


def _checkpoint(unit: Unit, out: Path | None) -> Checkpoint | None:
    return Checkpoint(unit.checkpoint(out), unit.identity) if out is not None else None


def _curve(result: Result, r: int) -> Curve:
    return Curve(result.curve_steps, [[None if np.isnan(a) else a for a in row] for row in result.curve[r].tolist()])


def _load(plugins: Sequence[str], unit: Unit) -> None:
    """Load the driver's plugins; a unit whose method or benchmark is still unknown after that is an error."""
    for file in plugins:
        load_plugin(file)
    benchmark, method = unit.request.benchmark, unit.request.method
    unknown = [f"the benchmark {benchmark!r}"] if benchmark not in catalogue.BENCHMARKS else []
    unknown += [f"the method {method!r}"] if method not in catalogue.METHODS else []
    if unknown:
        raise ValueError(
            f"workers do not know {' and '.join(unknown)}: register it in a file of its own, and load that file with "
            "ogd.lab.load_plugin(path) or --plugin"
        )


def _checkpoint_folder(out: Path, beacon: Path) -> Path | None:
    """Return where checkpoints go, if on the driver's own disk: elsewhere it could not find and remove them."""
    return out if beacon.parent.is_dir() else None


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"


class _Watch:
    """Reads the beacons from time to time and shows the progress."""

    def __init__(self, work: Sequence[Unit], folder: Path) -> None:
        self.work, self.folder = work, folder
        self.display = Display("")
        self.finished: set[str] = set()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def beacon(self, unit: Unit) -> Path:
        return self.folder / unit.key

    def __enter__(self) -> "_Watch":
        self.display.start(round(sum(unit.cost for unit in self.work)))
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()
        self.display.__exit__(None, None, None)

    def _look(self) -> None:
        while not self.stop.wait(BEAT):
            done, running = 0.0, []
            for unit in self.work:
                if unit.key in self.finished:
                    done += unit.cost
                    continue
                with contextlib.suppress(OSError, ValueError):
                    share, note = self.beacon(unit).read_text(encoding="utf-8").split(" ", 1)
                    done += float(share) * unit.cost
                    running.append(f"{unit.name}: {note}")
            more = [f"{len(running) - MOST_SHOWN} more"] if len(running) > MOST_SHOWN else []
            parts = [*self._count(), *(running[:MOST_SHOWN] or ["setting up"]), *more]
            self.display.show(round(done), " | ".join(parts))

    def _count(self) -> list[str]:
        """Say how many methods, or settings of methods, are done, where there are several."""
        unfinished = {unit.request.key for unit in self.work if unit.part != "first" and unit.key not in self.finished}
        asked = {unit.request.key: unit.request.method for unit in self.work}
        noun = "methods" if len(set(asked.values())) == len(asked) else "settings"
        return [f"{len(asked) - len(unfinished)} of {len(asked)} {noun} done"] if len(asked) > 1 else []
