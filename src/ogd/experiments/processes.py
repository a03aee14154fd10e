"""Units → their records, in as many processes as there are cores, with one display for all of them."""

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import joblib

from ogd.data import Dataset
from ogd.experiments import unit as units
from ogd.experiments.runner import Unit
from ogd.records import RunRecord
from ogd.training.progress import Display

Answer = list[RunRecord] | str  # records, or what went wrong

BEAT = 0.5  # seconds between two signs of life of a process


class Beacon:
    """A process tells how far its unit is, in a file that the driver looks at."""

    def __init__(self, path: Path, steps: int) -> None:
        self.path, self.steps, self.done, self.last = path, steps, 0, 0.0

    def start(self, total: int) -> None:
        """The unit's steps are known already."""

    def advance(self, done: int, note: str) -> None:
        self.done += done
        now = time.monotonic()
        if now - self.last >= BEAT:
            self.last = now
            with contextlib.suppress(OSError):  # a full disk must not stop the work it only tells of
                self.path.write_text(f"{self.done / self.steps:.4f} {note}", encoding="utf-8")


def perform(work: Sequence[Unit], dataset: Dataset, jobs: int | None) -> Iterator[tuple[Unit, Answer]]:
    """Carry out all units and yield each with its answer when it is there, in any order."""
    jobs = min(jobs or os.cpu_count() or 1, len(work))
    with tempfile.TemporaryDirectory() as folder, Display("") as display:
        beacons = [Path(folder) / str(i) for i in range(len(work))]
        watch = _Watch(display, work, beacons)
        with watch:
            calls = (
                joblib.delayed(_carry_out)(i, unit, dataset, beacon)
                for i, (unit, beacon) in enumerate(zip(work, beacons, strict=True))
            )
            parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1, pre_dispatch=jobs)
            for i, answer in parallel(calls):
                watch.finished.add(i)
                yield work[i], answer


def _carry_out(number: int, unit: Unit, dataset: Dataset, beacon: Path) -> tuple[int, Answer]:
    try:
        return number, list(units.perform(unit.request, unit.group, dataset, Beacon(beacon, unit.steps)))
    except Exception as error:  # whatever it is, the other units go on
        return number, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"


class _Watch:
    """Looks at the beacons from time to time and shows how far everything is."""

    def __init__(self, display: Display, work: Sequence[Unit], beacons: Sequence[Path]) -> None:
        self.display, self.work, self.beacons = display, work, beacons
        self.finished: set[int] = set()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> None:
        self.display.start(round(sum(unit.cost for unit in self.work)))
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    def _look(self) -> None:
        while not self.stop.wait(BEAT):
            done, running = 0.0, []
            for i, (unit, beacon) in enumerate(zip(self.work, self.beacons, strict=True)):
                if i in self.finished:
                    done += unit.cost
                    continue
                with contextlib.suppress(OSError, ValueError):
                    share, note = beacon.read_text(encoding="utf-8").split(" ", 1)
                    done += float(share) * unit.cost
                    running.append(f"{unit.name}: {note}")
            title = f"{len(self.finished)}/{len(self.work)} done"
            self.display.show(round(done), " | ".join([title, *(running or ["setting up"])]))
