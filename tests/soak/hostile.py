"""Large and hostile files, each read in a process of its own whose peak memory is looked at.

`python tests/soak/hostile.py READER FILE` reads a file and prints how it went and how much memory that took above what
the process had before. The input counts once: a memory of 400 MB may take 400 MB.
"""

import contextlib
import gzip
import json
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lanes import in_lanes

MB = 10**6
PATIENT = 300  # seconds after which a reader hangs
MOST_ABOVE = 300 * MB  # that a reader may take besides its input
JSON_READERS = ("record", "packed records", "journal", "tuning", "speed", "other JSON")


def json_files() -> dict[str, Callable[[Path], int]]:
    """Ways to make JSON that takes many times its size once it is read."""
    sizes = {
        "64 MB of lists": lambda: b"[" + b"[]," * (21 * MB) + b"[]]",
        "9 MB of lists": lambda: b"[" + b"[]," * (23 * MB // 10) + b"[]]",
        "objects": lambda: b"[" + b'{"a":1},' * (3 * MB // 2) + b"{}]",
        "different keys": lambda: b"{" + b",".join(b'"%d":1' % i for i in range(14 * MB // 10)) + b"}",
        "whole numbers": lambda: b"[" + b"1234567890123," * (4 * MB) + b"1]",
        "numbers": lambda: b"[" + b"1.5," * (6 * MB) + b"1]",
        "a long text": lambda: b'"' + b"a" * (66 * MB) + b'"',
        "a long text, wide": lambda: b'"' + b"a" * (66 * MB) + "😀".encode() + b'"',
        "a long text, wide and escaped": lambda: b'"' + b"a" * (66 * MB) + b'\\ud83d\\ude00"',
        "a text of 26 MB, wide": lambda: b'"' + b"a" * (26 * MB) + "😀".encode() + b'"',
        "a text of 32 MB, wide and escaped": lambda: b'"' + b"a" * (32 * MB) + b'\\ud83d\\ude00"',
        "escapes": lambda: b'"' + b"\\u00e9" * (8 * MB) + b'"',
        "many short texts": lambda: b"[" + b'"ab",' * (3 * MB) + b"1]",
        "a deep nest": lambda: b"[" * (60 * MB),
        "a long number": lambda: b"9" * (60 * MB),
        "a sound record, and spaces": lambda: b"{" + b" " * (60 * MB) + b"}",
    }
    return {name: lambda path, made=made: _write(path, made()) for name, made in sizes.items()}


def tensor_files() -> dict[str, Callable[[Path], int]]:
    """Headers that promise much, and large sound files."""

    def named(count: int) -> Callable[[Path], int]:
        def make(path: Path) -> int:
            entry = '"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
            header = ("{" + ",".join(entry % i for i in range(count)) + "}").encode()
            return _write(path, struct.pack("<Q", len(header)) + header)

        return make

    def described(path: Path) -> int:
        document = json.dumps({"version": 1, "a": [[]] * (4 * MB)})
        header = json.dumps({"__metadata__": {"ogd.memory": document, "ogd": document}}).encode()
        return _write(path, struct.pack("<Q", len(header)) + header)

    def sound(keep: str) -> Callable[[Path], int]:
        def make(path: Path) -> int:
            import torch

            from ogd.memory.loading import KINDS

            torch.manual_seed(0)
            rows = 12_000  # 480 MB of numbers
            memory = KINDS[keep](large_model(), per_task=None)
            memory.remember((torch.randn(rows, 5_000).double(), torch.zeros(rows).long()))
            memory.save(path)
            return path.stat().st_size

        return make

    return {
        "2,000,000 tensors of nothing": named(2 * MB),
        "190,000 tensors of nothing": named(190_000),
        "a large document": described,
        "a header of 2**60 bytes": lambda path: _write(path, struct.pack("<Q", 2**60) + b"{}"),
        "a sound memory of gradients": sound("gradients"),
        "a sound memory of examples": sound("examples"),
    }


def data_files() -> dict[str, Callable[[Path], int]]:
    """Bombs, headers that promise too much, and a large sound data set; the input is what the header promises."""

    def images(promised: int, there: int, zipped: bool) -> Callable[[Path], int]:
        def make(folder: Path) -> int:
            folder.mkdir()
            head = struct.pack(">HBB3I", 0, 8, 3, promised // 784, 28, 28)
            path = folder / f"train-images-idx3-ubyte{'.gz' if zipped else ''}"
            with gzip.open(path, "wb", 1) if zipped else path.open("wb") as file:
                file.write(head)
                block = bytes(MB)
                for _ in range(there // MB):
                    file.write(block)
                file.write(bytes(there % MB))
            for name in ("train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
                (folder / name).write_bytes(b"")
            whole = promised == there and not zipped
            return there if whole else path.stat().st_size

        return make

    return {
        "a bomb that promises little": images(784, 1500 * MB, True),
        "a bomb that promises what it holds": images(784 * 2 * MB, 784 * 2 * MB, True),
        "a promise of 4 GB, nothing behind it": images(784 * 5 * MB, 784, False),
        "a promise of 4 GB, zipped, nothing behind it": images(784 * 5 * MB, 784, True),
        "600 MB of images": images(784 * 765_000, 784 * 765_000, False),
    }


def cases() -> list[tuple[str, str, Callable[[Path], int]]]:
    """(reader, what, how it is made)."""
    found = [(reader, what, make) for what, make in json_files().items() for reader in JSON_READERS]
    for what, make in tensor_files().items():
        readers = ("memory", "checkpoint") if not what.startswith("a sound") else ("memory",)
        found += [(reader, what, make) for reader in readers]
    return [*found, *(("data set", what, make) for what, make in data_files().items())]


def large_model() -> Any:
    import torch

    return torch.nn.Linear(5_000, 3).double()


def read(reader: str, path: Path) -> Callable[[], Any]:
    """A function that reads a file; everything is imported before."""
    from ogd import json_files as files
    from ogd.lab import data, records
    from ogd.lab.records import packed, record, speed, tuning

    if reader in ("memory", "checkpoint"):
        from ogd.lab.training import Checkpoint, History
        from ogd.memory import load

        model = large_model()
        like = History(weights={"a": model.weight})
        checkpoint = Checkpoint(path, "soak")
        return (lambda: load(path, model)) if reader == "memory" else (lambda: checkpoint.read(like, 3))
    return {
        "record": lambda: records.read(path),
        "packed records": lambda: packed.read(path),
        "journal": lambda: record.read_journal(path),
        "tuning": lambda: tuning.read(path),
        "speed": lambda: speed.read(path),
        "other JSON": lambda: files.load(path),
        "data set": lambda: data.load(path),
    }[reader]


def attack(folder: Path, found: dict[str, Any], tell: Callable[[int, str], None], most: int | None = None) -> None:
    """Read every case in a process of its own, two at once, going on from what `found` says is done."""
    left = [case for case in cases()[:most] if f"{case[0]}: {case[1]}" not in found]
    cursor, lock = iter(enumerate(left)), threading.Lock()

    def lane(stop: threading.Event) -> None:
        while not stop.is_set():
            with lock:
                number, case = next(cursor, (0, None))
            if case is None:
                return
            reader, what, make = case
            answer = _tried(reader, make, folder / f"hostile-{number}")
            with lock:
                found[f"{reader}: {what}"] = answer
                tell(1, f"memory: {what}")

    in_lanes(lane)


def _tried(reader: str, make: Callable[[Path], int], path: Path) -> dict[str, Any]:
    given = make(path)
    try:
        done = subprocess.run(
            [sys.executable, __file__, reader, str(path)], capture_output=True, text=True, check=False, timeout=PATIENT
        )
        return {"input": given, **_answer(done)}
    except subprocess.TimeoutExpired:
        return {"input": given, "outcome": f"hangs for more than {PATIENT} s", "peak": 0, "failed": True}
    finally:
        _remove(path)


def _answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    with contextlib.suppress(ValueError, IndexError):
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer
    return {"outcome": f"ended with {done.returncode}: {done.stderr[-300:]}", "peak": 0, "failed": True}


def _write(path: Path, content: bytes) -> int:
    path.write_bytes(content)
    return len(content)


def _remove(path: Path) -> None:
    for inner in list(path.iterdir()) if path.is_dir() else []:
        inner.unlink()
    path.rmdir() if path.is_dir() else path.unlink()


def _status(field: str) -> int:
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(f"{field}:"))
    return 1024 * int(line.split()[1])


def main() -> None:
    reader, path = sys.argv[1], Path(sys.argv[2])
    reading = read(reader, path)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, failed = _status("VmRSS"), False
    try:
        outcome = "read" if reading() is not None else "refused"
    except ValueError as error:
        outcome, failed = "refused", str(path) not in str(error)
    peak = _status("VmHWM") - before
    print(json.dumps({"outcome": outcome, "peak": max(peak, 0), "failed": failed}))


if __name__ == "__main__":
    main()
