"""The attack of tests/soak, small: it runs, finds nothing, and would tell if it did."""

import importlib
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parent / "soak"


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes and their memory in /proc")
def test_a_small_attack_finds_nothing(tmp_path):
    record = tmp_path / "soak.json"
    small = {"--inputs": 600, "--kills": 1, "--files": 2, "--models": 5, "--record": record}
    command = [sys.executable, SOAK / "soak.py", *(word for pair in small.items() for word in pair)]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(record.read_text())["found"]
    assert sum(state["inputs"] for state in found["inputs"].values()) >= 600
    assert all(state["read"] + state["refused"] == state["inputs"] for state in found["inputs"].values())
    assert found["kills"]["kills"] >= 1
    assert len(found["memory"]) == 2
    assert found["models"] == {"cases": 5, "failures": []}


@pytest.fixture
def readers(monkeypatch):
    monkeypatch.syspath_prepend(str(SOAK))
    return importlib.import_module("readers")


def test_mutants_are_tried_with_the_tests_of_both_doors(monkeypatch):
    monkeypatch.syspath_prepend(str(SOAK))
    mutants = importlib.import_module("mutants")
    files = [Path(file).relative_to(SOAK.parent).parts[0] for file in mutants.tests()]
    assert {"memory", "lab"} <= set(files)
    assert all((SOAK.parents[1] / "src" / "ogd" / name).is_file() for name in mutants.SPEED)


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        (lambda: {}["a"], KeyError),
        (lambda: int("a"), AssertionError),  # an error without the file's name
        (lambda: "other", AssertionError),  # damage that nobody noticed
    ],
)
def test_the_attack_tells_what_is_wrong(readers, read, problem):
    reader = readers.Reader(
        "r", 1, lambda rng: False, read, "/some/file", lambda value: value == "mine", refuses=ValueError
    )
    with pytest.raises(problem):
        reader.attack(random.Random(0))
