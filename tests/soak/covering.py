"""Which tests run which function, and how long each takes: measured once by running them all, two files at a time.

The answer per file is kept in .pytest_cache until it, something in src/ or what tests share changes.
"""

import ast
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ogd.files import write_text

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "ogd"
CACHE = ROOT / ".pytest_cache"
BUDGET = 40.0  # seconds of tests per mutant


class Tracer:
    """A pytest plugin that notes the functions of ogd that every test calls."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        seen, prefix, began = set[Any](), f"{SOURCE}{os.sep}", time.monotonic()

        def note(frame: Any, event: str, _: Any) -> None:
            if event == "call":
                seen.add(frame.f_code)

        threading.setprofile(note)
        sys.setprofile(note)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
            ours = [code for code in seen if code.co_filename.startswith(prefix)]
            places = sorted({f"{code.co_filename.removeprefix(prefix)}:{code.co_firstlineno}" for code in ours})
            self.tests[item.nodeid] = {"seconds": round(time.monotonic() - began, 3), "calls": places}


def measured(files: Iterable[str]) -> dict[str, dict[str, Any]]:
    """All tests of these files: their seconds, and the functions they call as `file:line`."""
    running = dict[int, Path]()
    CACHE.mkdir(exist_ok=True)
    answers = {file: CACHE / f"covering-{Path(file).stem}-{_key(file)}.json" for file in files}
    left = [file for file, answer in answers.items() if not answer.exists()]
    while left or running:
        while left and len(running) < 2:
            file = left.pop()
            running[_forked(file, answers[file])] = answers[file]
        child, status = os.wait()
        answer = running.pop(child)
        if status or not answer.exists():
            sys.exit(f"{answer.stem}: the tests fail without any mutant")
        print(f"{answer.stem}; {len(left) + len(running)} files of tests left", file=sys.stderr, flush=True)
    return {test: about for answer in answers.values() for test, about in json.loads(answer.read_text()).items()}


def covering(tests: dict[str, dict[str, Any]], name: str, line: int) -> list[str]:
    """The tests that call the function in this line of a file, fastest first, as many as the budget allows."""
    first = _function(name, line)
    calling = [test for test, about in tests.items() if f"{name}:{first}" in about["calls"]]
    if not calling:  # what runs while the file is imported
        calling = [test for test, about in tests.items() if any(c.startswith(f"{name}:") for c in about["calls"])]
    chosen, spent = [], 0.0
    for test in sorted(calling, key=lambda test: tests[test]["seconds"]):
        spent += tests[test]["seconds"]
        if chosen and spent > BUDGET:
            break
        chosen.append(test)
    return chosen


def _function(name: str, line: int) -> int:
    """The first line of the innermost function around a line, or 0."""
    tree = ast.parse((SOURCE / name).read_text())
    around = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.lineno <= line <= (n.end_lineno or 0)]
    if not around:
        return 0
    inner = max(around, key=lambda node: node.lineno)
    return min(part.lineno for part in (inner, *inner.decorator_list))


def _forked(file: str, answer: Path) -> int:
    child = os.fork()
    if child == 0:
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        tracer = Tracer()
        code = pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", file], plugins=[tracer])
        if not code:
            write_text(answer, json.dumps(tracer.tests))
        os._exit(int(code))
    return child


def _key(file: str) -> str:
    shared = [path for path in (ROOT / "tests").glob("*.py") if not path.name.startswith("test_")]
    made = hashlib.sha256(Path(file).read_bytes())
    for path in sorted([*(ROOT / "src").rglob("*.py"), *shared]):
        made.update(path.read_bytes())
    return made.hexdigest()[:12]
