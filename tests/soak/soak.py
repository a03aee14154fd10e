"""The attack on files, processes and mathematics: `make soak`.

    python tests/soak/soak.py                                               all of it: half an hour on two cores
    python tests/soak/soak.py --inputs 500 --kills 1 --files 3 --models 20  a small part, in seconds

100,000 mutated inputs through every reader, 100 kills at random moments, large hostile files whose reading must not
take much memory, and 1,000 random models whose P is compared with a dense reference. The record is written while it
goes on. If you interrupt it, run the same command again and it resumes. It ends with an error if anything was found.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent)]

import hostile  # noqa: E402
import inputs  # noqa: E402
import kills  # noqa: E402
import models  # noqa: E402
from conftest import write_tiny  # noqa: E402
from ogd import json_files  # noqa: E402
from ogd.files import write_text  # noqa: E402
from ogd.lab.progress import Display  # noqa: E402
from ogd.lab.records.record import environment  # noqa: E402

RECORD = ROOT / "results" / "soak.json"
MEMORY_DISK = Path("/dev/shm")  # inputs are many small files, which need no disk
PART_OF_A_KILL = 2_500  # mutated inputs that take as long as one kill
PART_OF_A_FILE = 800
PART_OF_A_MODEL = 10
INTERVAL = 5.0  # seconds between two records


class Soak:
    """What was asked, what was found so far, and where it is written."""

    def __init__(self, path: Path, asked: dict[str, int]) -> None:
        self.path, self.asked = path, asked
        self.found: dict[str, Any] = {"inputs": {}, "kills": {}, "memory": {}, "models": {}, "seconds": {}}
        if path.exists():
            old = json_files.load(path)
            if old["asked"] == asked and not old["finished"]:
                self.found = old["found"]
        self.display, self.written, self.finished = Display("soak"), time.monotonic(), False

    def tell(self, part: int, note: str) -> None:
        self.display.advance(part, note)
        if time.monotonic() - self.written > INTERVAL:
            self.write()

    def write(self) -> None:
        record = {"schema": 1, "asked": self.asked, "finished": self.finished, "found": self.found}
        write_text(self.path, json.dumps({**record, "environment": environment()}, indent=1) + "\n")
        self.written = time.monotonic()

    def run(self, only: list[str]) -> None:
        """Go on with all parts, or only with some."""
        cases = len(hostile.cases()[: self.asked["files"]])
        total = self.asked["inputs"] + PART_OF_A_KILL * self.asked["kills"] + PART_OF_A_FILE * cases
        total += PART_OF_A_MODEL * self.asked["models"]
        with self.display, tempfile.TemporaryDirectory() as slow, _fast() as fast:
            done = sum(state["inputs"] for state in self.found["inputs"].values())
            done += PART_OF_A_KILL * self.found["kills"].get("kills", 0) + PART_OF_A_FILE * len(self.found["memory"])
            done += PART_OF_A_MODEL * self.found["models"].get("cases", 0)
            self.display.start(max(total - done, 1))
            parts = {"inputs": self._inputs, "kills": self._kills, "memory": self._memory, "models": self._models}
            for name in only or parts:
                self._timed(name, lambda part=parts[name], name=name: part(Path(fast if name == "inputs" else slow)))
        self.finished = not only

    def _inputs(self, folder: Path) -> None:
        inputs.attack(inputs.made(folder), self.asked["inputs"], self.asked["seed"], self.found["inputs"], self.tell)

    def _kills(self, folder: Path) -> None:
        told = [self.found["kills"].get("kills", 0)]

        def tell(_: int, note: str) -> None:
            now = min(self.found["kills"]["kills"], self.asked["kills"])
            self.tell(PART_OF_A_KILL * (now - told[0]), f"{note}: {now}")
            told[0] = now

        data = write_tiny(folder / "small", n=400)
        kills.attack(self.asked["kills"], self.asked["seed"], folder, data, self.found["kills"], tell)

    def _memory(self, folder: Path) -> None:
        def tell(count: int, note: str) -> None:
            self.tell(PART_OF_A_FILE * count, note)

        hostile.attack(folder, self.found["memory"], tell, self.asked["files"])

    def _models(self, _: Path) -> None:
        def tell(count: int, note: str) -> None:
            self.tell(PART_OF_A_MODEL * count, note)

        models.attack(self.asked["models"], self.asked["seed"], self.found["models"], tell)

    def _timed(self, name: str, part: Any) -> None:
        began = time.monotonic()
        try:
            part()
        finally:
            seconds = self.found["seconds"].get(name, 0) + time.monotonic() - began
            self.found["seconds"][name] = round(seconds, 1)


def _fast() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None)


def harm(found: dict[str, Any]) -> list[str]:
    """A line for everything that must not happen."""
    lines = [f"{name}: {line}" for name, state in found["inputs"].items() for line in state["failures"]]
    lines += [*found["kills"].get("failures", []), *found["models"].get("failures", [])]
    for name, case in found["memory"].items():
        if case["failed"] or case["peak"] > case["input"] + hostile.MOST_ABOVE:
            lines.append(f"{name}: {case['outcome']}, {case['peak']:,} bytes for {case['input']:,}")
    return lines


def main() -> None:
    # a shell starts what is in its background without Ctrl-C, and so it would be for all that is killed with it here
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, signal.default_int_handler)
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, number in (("inputs", 100_000), ("kills", 100), ("files", 1_000), ("models", 1_000), ("seed", 0)):
        words.add_argument(f"--{name}", type=int, default=number)
    words.add_argument("--record", type=Path, default=RECORD)
    words.add_argument("--only", nargs="+", default=[], choices=("inputs", "kills", "memory", "models"))
    asked = vars(words.parse_args())
    only, soak = asked.pop("only"), Soak(asked.pop("record"), asked)
    try:
        soak.run(only)
    except KeyboardInterrupt:
        sys.exit("interrupted: run the same command again to resume")
    finally:
        soak.write()
    problems = harm(soak.found)
    print(f"{len(problems)} problems; the record: {soak.path}")
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main()
