"""Kills at random moments of a small `ogd run`, `ogd reproduce` or `ogd tune`, and the same command again.

A trial is a folder, a command and one to four kills, each of the same command begun again, until it is let finish. Then
the records must be those of an uninterrupted run but for their times, and nothing else may be left on the disk.
"""

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lanes import in_lanes

ENDS = {"SIGKILL": -9, "SIGTERM": 143, "SIGINT": 130}  # how a driver ends after a signal that came in time
TOKEN = "OGD_SOAK_TRIAL"  # in the environment of all processes of a trial, by which they are found
GRACE = 2.0  # seconds that a process may outlive its driver
PATIENT = 300.0  # seconds after which a command hangs
PLUGIN = """
import os
import pathlib

pathlib.Path({folder!r}, os.environ[{token!r}] + "-begun").touch()
import ogd.lab.data
import ogd.lab.training.checkpoint

ogd.lab.training.checkpoint.PATIENCE = 0.0
mnist = ogd.lab.data.load
ogd.lab.data.load = lambda source=None: mnist({data!r})
"""
SIZES = "--tasks 3 --epochs 3 --batch-size 8 --hidden 20 --runs 2"
COMMANDS = {
    "run": f"run {SIZES} --curve-every 50 --method sgd ogd agem der --storage 30",
    "reproduce": "reproduce rotated --quick --runs 1",
    "tune": f"tune ewc {SIZES} --grid 1 10",
}
PYTHONS_OWN = "tracebacks of Python before it has imported ogd"  # a Ctrl-C that no program can catch
SIGNALS = ("driver SIGKILL", "driver SIGTERM", "driver SIGINT", "terminal SIGINT", "worker SIGKILL")
LATE = {"run": ("run-*.json",), "reproduce": ("run-*.json",), "tune": ("*.json",)}  # all that may be left


@dataclass
class Attack:
    """What all trials share: the data, what is expected of each command, and what was found."""

    folder: Path
    data: Path
    found: dict[str, Any]
    whole: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    lock: Any = field(default_factory=threading.Lock)
    preparing: Any = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        (self.folder / "small_and_eager.py").write_text(
            PLUGIN.format(folder=str(self.folder), token=TOKEN, data=str(self.data))
        )

    def prepare(self, name: str) -> None:
        """Run a command once without a break, on small data, with a checkpoint after every epoch."""
        with self.preparing:
            if name in self.whole:
                return
            out = self.folder / f"whole-{name}"
            began = time.monotonic()
            code, said = self.finish(name, out, 1)
            if code:
                raise RuntimeError(f"ogd {COMMANDS[name]} fails without any kill: {said}")
            self.seconds[name], self.whole[name] = time.monotonic() - began, written(out)

    def start(self, name: str, out: Path, jobs: int) -> subprocess.Popen[str]:
        """Start a command, in a session of its own, and with a temporary folder of its own."""
        temporary = self.folder / f"{out.name}-temporary"
        temporary.mkdir(exist_ok=True)
        self.begun(out).unlink(missing_ok=True)
        words = [*COMMANDS[name].split(), "--out", str(out), *(["--jobs", str(jobs)] if name != "tune" else [])]
        environment = {**os.environ, TOKEN: out.name, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        return subprocess.Popen(
            [sys.executable, "-m", "ogd", *words, "--plugin", str(self.folder / "small_and_eager.py")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def begun(self, out: Path) -> Path:
        """The file by which a command says that it runs: Python has started, and ogd has its plugin."""
        return self.folder / f"{out.name}-begun"

    def finish(self, name: str, out: Path, jobs: int) -> tuple[int, str]:
        """Run a command to its end; its exit code and what it said."""
        process = self.start(name, out, jobs)
        try:
            said = process.communicate(timeout=PATIENT)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            return 1, f"it hangs for more than {PATIENT:.0f} s {process.communicate()[1]}"
        return process.returncode, said

    def trial(self, number: int, seed: int) -> None:
        """Kill a command one to four times, let it finish, and look."""
        rng = random.Random(f"{seed}/kills/{number}")
        name = rng.choice(("run", "run", "run", "reproduce", "tune"))
        jobs = 1 if name == "tune" else rng.choice((1, 2, 2))
        self.prepare(name)
        out = self.folder / f"trial-{number}"
        kills, done = rng.choice((1, 2, 3, 4)), Counter[str]()
        for _ in range(kills):
            signalled = rng.choice(SIGNALS if jobs > 1 else SIGNALS[:-1])
            done[signalled] += self.kill(name, out, jobs, signalled, rng)
        self.end(name, out, jobs)
        with self.lock:
            for signalled, count in done.items():
                self.found["by signal"][signalled] = self.found["by signal"].get(signalled, 0) + count
            self.found["kills"] += done.total()
            self.found["trials"] += 1

    def kill(self, name: str, out: Path, jobs: int, signalled: str, rng: random.Random) -> bool:
        """Start a command and send a signal at a random moment; whether it came before the end."""
        process = self.start(name, out, jobs)
        # a part of all kills while Python starts, the others at any time
        delay = rng.uniform(0, 0.5) if rng.random() < 0.2 else rng.uniform(0, 1.1 * self.seconds[name])
        who, which = signalled.split()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(delay)
        hit = process.poll() is None
        if who == "worker":
            hit = self._kill_worker(process, out.name)
        elif who == "terminal":
            if hit:
                os.killpg(process.pid, getattr(signal, which))  # a zombie's group is there until it is waited for
        else:
            process.send_signal(getattr(signal, which))
        try:
            said = process.communicate(timeout=PATIENT)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            said = process.communicate()[1]
            self.fail("hangs", f"{out.name}: ogd {name} after {signalled}")
        self.look_at(said, out, f"{out.name}: ogd {name}, --jobs {jobs}, {signalled} after {delay:.2f} s")
        hit = hit and (who == "worker" or process.returncode != 0)  # it may have come while all was done
        if not self.may_end(process.returncode, said, name, out, signalled):
            where = f"{out.name}: ogd {name}, --jobs {jobs}"
            self.fail("wrong exits", f"{where}: {process.returncode} after {signalled} at {delay:.2f} s: {said[-300:]}")
        self.outlived(out.name, signalled)
        return hit

    def may_end(self, code: int, said: str, name: str, out: Path, signalled: str) -> bool:
        """Whether a command may end so after a signal.

        It ends as if nothing had come (code 0), or says that it was interrupted. Only where Python itself is at work
        may it end by the signal: before the command runs, or after it when all its records are written.
        """
        who, which = signalled.split()
        if code == 0 or who == "worker":
            return code == 0
        if code == ENDS[which] and which == "SIGKILL":
            return True
        if (
            "ogd: interrupted" in said
        ):  # `python -m` ends by SIGINT, whatever its code, if that came while an extension ran Python
            return code in (ENDS[which], -getattr(signal, which))
        if not self.begun(out).exists():
            return code in (-getattr(signal, which), 1)  # 1 after a traceback of Python's, which is looked at
        return code == -getattr(signal, which) and written(out) == self.whole[name]

    def _kill_worker(self, process: subprocess.Popen[str], token: str) -> bool:
        """Kill a worker, waiting for one if there is none yet."""
        while process.poll() is None:
            workers = [pid for pid, words in processes(token) if b"ogd.lab.worker" in words]
            if workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(workers[-1], signal.SIGKILL)
                    return True
            time.sleep(0.02)
        return False

    def outlived(self, token: str, signalled: str) -> None:
        """Look for processes that are there two seconds after their driver."""
        until = time.monotonic() + GRACE
        while (left := processes(token)) and time.monotonic() < until:
            time.sleep(0.05)
        for pid, words in left:
            self.fail("processes left", f"{token}: {words!r:.200} after {signalled}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self, name: str, out: Path, jobs: int) -> None:
        """Let the command finish, and compare what it leaves with what it should."""
        code, said = self.finish(name, out, jobs)
        self.look_at(said, out, f"{out.name}: ogd {name}, --jobs {jobs}, to its end")
        if code:
            now = time.strftime("%H:%M:%S")  # 143 would be a signal from somebody else: the attack sent it none
            self.fail(
                "wrong exits", f"{out.name}: ogd {name}, sent no signal, ends with {code} at {now}: {said[-300:]}"
            )
        there, expected = written(out), self.whole[name]
        if there != expected:
            names = [str(path) for path in there.keys() | expected.keys() if there.get(path) != expected.get(path)]
            self.fail("differing records", f"{out.name}: ogd {name}: {', '.join(sorted(names)[:3])}")
        temporary = self.folder / f"{out.name}-temporary"
        left = [p for p in out.rglob("*") if p.is_file() and not any(p.match(kind) for kind in LATE[name])]
        left += [p for p in temporary.iterdir() if not p.name.startswith("torchinductor")]  # PyTorch's own
        for path in left:
            self.fail("files left", f"{out.name}: {path.name}")
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(temporary, ignore_errors=True)
        self.begun(out).unlink(missing_ok=True)

    def look_at(self, said: str, out: Path, where: str) -> None:
        """Look for tracebacks in what a command said."""
        if "Traceback" not in said:
            return
        if self.begun(out).exists() or "ogd/lab/cli/" in said:
            self.fail("tracebacks", f"{where}: {said.strip()[-400:]}")
        else:
            with self.lock:
                self.found[PYTHONS_OWN] = self.found.get(PYTHONS_OWN, 0) + 1

    def fail(self, kind: str, what: str) -> None:
        with self.lock:
            self.found[kind] = self.found.get(kind, 0) + 1
            if len(self.found["failures"]) < 20:
                self.found["failures"].append(f"{kind}: {what}")


def attack(
    count: int, seed: int, folder: Path, data: Path, found: dict[str, Any], tell: Callable[[int, str], None]
) -> None:
    """Make so many kills, going on from what `found` says is done."""
    for key in ("kills", "trials", "tracebacks", "differing records", "processes left", "files left", "wrong exits"):
        found.setdefault(key, 0)
    found.setdefault("hangs", 0)
    found.setdefault("by signal", {})
    found.setdefault("failures", [])
    if found["kills"] >= count:
        return
    attack = Attack(folder, data, found)
    numbers, begun = itertools.count(found["trials"]), [0]

    def lane(stop: threading.Event) -> None:
        while found["kills"] + begun[0] < count and not stop.is_set():
            with attack.lock:
                number = next(numbers)
                begun[0] += 1  # at least one kill each
            try:
                attack.trial(number, seed)
            finally:
                begun[0] -= 1
            with attack.lock:
                tell(0, "kills")

    in_lanes(lane)


def written(out: Path) -> dict[Path, Any]:
    """All records, without what may differ: times, and the commit, which somebody may make meanwhile."""
    found = {}
    for path in sorted(out.rglob("*.json")):
        value = json.loads(path.read_text())
        value["environment"].pop("commit", None)
        found[path.relative_to(out)] = {**value, "seconds": 0}
    return found


def processes(token: str) -> list[tuple[int, bytes]]:
    """The processes of a trial that are alive, with their command lines."""

    def look() -> Iterator[tuple[int, bytes]]:
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{TOKEN}={token}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                    if state not in "ZX":
                        yield int(folder.name), (folder / "cmdline").read_bytes()

    return list(look())
