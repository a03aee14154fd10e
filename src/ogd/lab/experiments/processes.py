"""Calls in processes of this machine: one per core, each with one call at a time.

A call and its answer are files in a folder of the driver's, pickled by it and its own workers; nobody else can write
there. Standard input and output only say which file is next and that it is done, so a driver that is killed at any
moment leaves no half-sent data behind, and its workers leave (`ogd.lab.worker`).
"""

import os
import pickle
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ogd.files import temporary_folder

QUOTA = Path("/sys/fs/cgroup/cpu.max")


class WorkerDied(RuntimeError):
    """A process ended without an answer: it was killed, or there was no memory."""


def cores() -> int:
    """How many cores this process may use, also where a container limits it.

    Examples:
        >>> cores() >= 1
        True
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = QUOTA.read_text(encoding="ascii").split()
        return max(min(allowed, -(-int(quota) // int(period))), 1)
    except (OSError, ValueError):  # no such file, or no limit
        return allowed


def stream(jobs: int) -> Callable[[Callable[..., Any], Sequence[tuple[Any, ...]]], Iterator[Any]]:
    """A function that makes calls in so many processes, in this one if one is enough; answers come in any order."""

    def make(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        n = min(jobs, len(calls))
        if n <= 1:
            return (function(*call) for call in calls)
        return _answers(function, calls, n)

    return make


def _answers(function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], n: int) -> Iterator[Any]:
    waiting = iter(enumerate(calls))
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        selector = stack.enter_context(selectors.DefaultSelector())
        for _ in range(n):
            worker = stack.enter_context(_Worker(folder))
            worker.begin(function, *next(waiting))
            selector.register(worker.output, selectors.EVENT_READ, worker)
        while selector.get_map():
            for key, _ in selector.select():
                worker = key.data
                answer = worker.answer()
                following = next(waiting, None)
                if following is None:
                    selector.unregister(worker.output)
                else:
                    worker.begin(function, *following)
                yield answer


class _Worker:
    """A process; as a context manager it is ended with the block."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.folder, self.path = folder, Path()
        with _without_ctrl_c():
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ogd.lab.worker", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=environment,
            )
        assert self.process.stdout is not None
        self.output = self.process.stdout

    def begin(self, function: Callable[..., Any], number: int, call: tuple[Any, ...]) -> None:
        """Hand it a call."""
        self.path = self.folder / f"{number}.call"
        self.path.write_bytes(pickle.dumps((function, call)))
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(os.fsencode(self.path) + b"\n")
        except BrokenPipeError:
            self._died()

    def answer(self) -> Any:
        """What the call returned."""
        if self.output.readline() != b"done\n":
            self._died()
        found = self.path.with_suffix(".answer")
        worked, answer = pickle.loads(found.read_bytes())
        found.unlink()
        self.path.unlink()
        if not worked:
            raise RuntimeError(answer)
        return answer

    def _died(self) -> None:
        code = self.process.wait()
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        raise WorkerDied(f"a worker process ended {how} before it had an answer")

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Processes started inside never see Ctrl-C, not even while they start; this process gets it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
