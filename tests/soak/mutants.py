"""Tests that can fail: changes one place of the source at a time and sees whether a test notices.

    python tests/soak/mutants.py --count 100 --seed 1     writes results/mutants.json as it goes; run it again to resume
    python tests/soak/mutants.py --show                   prints that record as Markdown
    python tests/soak/mutants.py --count 20 --seed 2 --only memory/blocks --record /tmp/mutants.json

A mutant is a copy of the package with one comparison, sign, number, condition or statement changed, drawn by a seed. It
is caught if a test fails or takes too long: of the examples in the changed file, and of those tests that call the
changed function, fastest first, for up to 40 seconds. First all tests run once to see which these are. Two mutants are
tried at once.

Not drawn is what no test could notice, or should: what is said to people (texts, `__repr__`, arguments of
`warn_of_work` and `warn_if_long`), what is for the type checker (annotations, `assert`, `cast`, methods that others
override), `zip(strict=)`, which guards against mistakes of our own, and what decides only how long something takes or
how much memory, with the same result: the numbers in `SPEED`, what they are multiplied or divided by, and
functions that estimate.
"""

import argparse
import ast
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ogd import json_files
from ogd.files import write_text

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "results" / "mutants.json"
LANES = 2  # mutants at once
PATIENCE = 4  # times as long as without a mutant may its tests take,
START = 30  # and so many seconds more
ASIDE = """
backends benchmarks boards cli data distributed distributed_errors documents english example_scripts fetching flights
notebooks package page plot plugins progress readable rehearsal_ranks report report_formats report_index report_init
report_opening report_own reporting resume run_shown sharded sharded_changes soak stopping terminal verify
your_own_method
"""  # files of tests that start processes, or that are about documents and pages
PACKAGES = ("memory", "lab/methods", "lab/training", "lab/records")  # of which places are drawn
LEFT_OUT = ("memory/ranks", "memory/data/distributed_sampling.py")  # whose tests start several processes each
SPEED = {  # numbers by file that decide only how long something takes, or how much memory
    "memory/blocks/gram.py": "CHUNK TILE PANEL STRIP LEAST TRAFFIC",
    "memory/blocks/sparse.py": "OFTEN",
    "memory/projection/columns.py": "PART",
    "memory/blocks/convolution_geometry.py": "SMALL CHANNELS PART",
    "memory/blocks/pieces.py": "LARGE",
    "memory/projection/solve.py": "SAMPLE",
    "memory/projection/projector.py": "SLOW",
    "memory/data/batches.py": "CHUNK_SIZE CHUNK_BYTES",
    "memory/examples/prefetch.py": "BATCHES MAX_BYTES",
    "lab/benchmarks/batches.py": "CHUNK",
    "memory/changes/other_weights.py": "PART",
    "lab/training/evaluation.py": "BATCH",
}
COSTS = ("_cost", "_speed")  # how the names of functions end that only estimate
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Div, ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


class Mutator(ast.NodeTransformer):
    """Counts the places where something can be changed, and changes the one that is asked for."""

    def __init__(self, name: str, wanted: int = -1) -> None:
        self.wanted, self.count, self.told = wanted, 0, ""
        self.speed = set(SPEED.get(name, "").split())

    def here(self, node: Any, what: str) -> bool:
        self.count += 1
        if self.count - 1 != self.wanted:
            return False
        self.told = f"{node.lineno}: {what}"
        return True

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if self.here(node, f"{type(node.ops[0]).__name__} swapped in {ast.unparse(node)}"):
            node.ops[0] = SWAPPED[type(node.ops[0])]()  # type: ignore[assignment]
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        there = SPEED.get((node.module or "").removeprefix("ogd.").replace(".", "/") + ".py", "").split()
        self.speed |= {alias.name for alias in node.names if alias.name in there}
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if any(isinstance(side, ast.Name) and side.id in self.speed for side in (node.left, node.right)):
            return node  # as good as another value of that number
        self.generic_visit(node)
        if type(node.op) in SWAPPED and self.here(node, f"{type(node.op).__name__} swapped in {ast.unparse(node)}"):
            node.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if self.here(node, f"{type(node.op).__name__} swapped in {ast.unparse(node)}"):
            node.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, int | float) and self.here(node, f"another value for {node.value}"):
            new = not node.value if isinstance(node.value, bool) else node.value * 2 + 1
            return ast.copy_location(ast.Constant(new), node)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        if ast.unparse(node.test) == "TYPE_CHECKING":
            return node
        self.generic_visit(node)
        if self.here(node, f"not: if {ast.unparse(node.test)}"):
            node.test = ast.UnaryOp(ast.Not(), node.test)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Constant):
            return node
        return self._dropped(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        return self._dropped(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if ast.unparse(node) == "raise NotImplementedError":
            return node  # for the type checker
        return ast.copy_location(ast.Pass(), node) if self.here(node, f"no {ast.unparse(node)[:60]}") else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node  # what is said to people

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node  # for the type checker

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        names = {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        return node if names & self.speed else self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        return node if node.arg in ("strict", "stacklevel") else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node  # an annotation

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.body = [self.visit(part) for part in node.body]
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name in ("__repr__", "__str__") or node.name.endswith(COSTS):
            return node
        node.args.defaults = [self.visit(value) for value in node.args.defaults]
        node.body = [self.visit(part) for part in node.body]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = ast.unparse(node.func)
        if name.startswith("warnings.") or name in ("warn_of_work", "warn_if_long", "cast", "TypeVar", "overload"):
            return node
        return self.generic_visit(node)

    def _dropped(self, node: Any) -> ast.AST:
        if self.here(node, f"without {ast.unparse(node)[:80]}"):
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)


def places(packages: Sequence[str] = PACKAGES) -> list[tuple[str, int]]:
    """Every (file, place) that can be changed."""
    found = []
    for package in packages:
        for path in sorted((ROOT / "src" / "ogd" / package).rglob("*.py")):
            name = path.relative_to(ROOT / "src" / "ogd").as_posix()
            if not name.startswith(LEFT_OUT):
                counter = Mutator(name)
                counter.visit(ast.parse(path.read_text()))
                found += [(name, place) for place in range(counter.count)]
    return found


def tests() -> list[str]:
    """The files of tests that may notice something."""
    files = sorted(file for folder in (".", "lab", "memory") for file in (ROOT / "tests" / folder).glob("test_*.py"))
    return [str(file) for file in files if file.stem.removeprefix("test_") not in ASIDE.split()]


@dataclass
class Trial:
    """A mutant whose tests run in a fork of this process."""

    about: dict[str, Any]
    path: Path  # of the changed file
    source: str  # which is put back
    child: int
    began: float
    limit: float  # seconds

    def ended(self) -> dict[str, Any] | None:
        """The mutant's line in the record, once its tests are over."""
        seconds = time.monotonic() - self.began
        ended, status = os.waitpid(self.child, os.WNOHANG)
        if ended:
            outcome = "survived" if os.waitstatus_to_exitcode(status) == 0 else "caught"
        elif seconds < self.limit:
            return None
        else:
            outcome = "too slow"
            self.kill()
        self.path.write_text(self.source)
        return {**self.about, "outcome": outcome, "seconds": round(seconds, 1)}

    def kill(self) -> None:
        os.killpg(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)


def begun(copy: Path, name: str, place: int, measured: dict[str, Any]) -> Trial:
    """Make one mutant in a copy of the package, and start its tests."""
    from covering import covering

    path, mutator = copy / "ogd" / name, Mutator(name, place)
    source = path.read_text()
    mutant = ast.unparse(ast.fix_missing_locations(mutator.visit(ast.parse(source))))
    chosen = covering(measured, name, int(mutator.told.split(":")[0]))
    path.write_text(mutant)
    about = {"file": name, "place": place, "change": mutator.told, "tests": len(chosen)}
    limit = START + PATIENCE * sum(measured[test]["seconds"] for test in chosen)
    return Trial(about, path, source, _forked(copy, [str(path), *chosen]), time.monotonic(), limit)


def _forked(copy: Path, tests: list[str]) -> int:
    """Run tests in a fork of this process, which has torch and pytest already."""
    child = os.fork()
    if child == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        for module in [module for module in sys.modules if module.split(".")[0] == "ogd"]:
            del sys.modules[module]
        os.environ["PYTHONPATH"] = str(copy)
        sys.path.insert(0, str(copy))
        os.chdir(ROOT)
        import pytest

        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), *tests])
        os._exit(0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code))  # without tests nothing can fail
    return child


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--count", type=int, default=100)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--only", nargs="+", default=PACKAGES, metavar="PACKAGE")
    words.add_argument("--record", type=Path, default=RECORD)
    asked = words.parse_args()
    import torch

    from covering import measured

    torch.set_num_threads(1)
    sys.dont_write_bytecode = True
    every = places(asked.only)
    chosen = random.Random(asked.seed).sample(every, asked.count)
    old = json_files.load(asked.record) if asked.record.exists() else {"seed": None}
    record = {"schema": 1, "seed": asked.seed, "places": len(every), "mutants": []}
    if (old["seed"], old.get("places")) == (asked.seed, record["places"]):
        record = old
    done = {(mutant["file"], mutant["place"]) for mutant in record["mutants"]}
    left = [one for one in chosen if one not in done]
    seen = measured(tests())
    began, total, running = time.monotonic(), len(left), dict[Path, Trial]()
    with tempfile.TemporaryDirectory() as folder:
        free = [Path(folder) / f"src-{lane}" for lane in range(LANES)]
        for copy in free:
            shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        try:
            while left or running:
                while left and free:
                    copy = free.pop()
                    running[copy] = begun(copy, *left.pop(0), seen)
                for copy, trial in list(running.items()):
                    if (found := trial.ended()) is not None:
                        del running[copy]
                        free.append(copy)
                        record["mutants"].append(found)
                        write_text(asked.record, json.dumps(record, indent=1) + "\n")
                        _tell(found, total - len(left) - len(running), total, began)
                time.sleep(0.05)
        finally:
            for trial in running.values():
                trial.kill()


def _tell(found: dict[str, Any], number: int, total: int, began: float) -> None:
    minutes = (time.monotonic() - began) / number * (total - number) / 60
    told = f"{found['outcome']}: {found['file']}:{found['change']}"
    print(f"{number}/{total}, {minutes:.1f} min left, {told}", file=sys.stderr, flush=True)


def show() -> None:
    if not RECORD.exists():
        print("There is no record yet: run `python tests/soak/mutants.py`.")
        return
    record = json_files.load(RECORD)
    by_package = {package.removeprefix("lab/"): Counter[str]() for package in PACKAGES}
    for mutant in record["mutants"]:
        by_package[mutant["file"].removeprefix("lab/").split("/")[0]][mutant["outcome"]] += 1
    print("| package | mutants | caught | too slow, so caught | survived |\n| --- | ---: | ---: | ---: | ---: |")
    total = sum(by_package.values(), Counter[str]())
    for package, counts in {**by_package, "**all**": total}.items():
        cells = [counts.total(), *(counts[outcome] for outcome in ("caught", "too slow", "survived"))]
        print(f"| {package} | {' | '.join(map(str, cells))} |")
    share = 1 - total["survived"] / total.total()
    print(f"\n{share:.0%} of {total.total()} mutants, drawn from {record['places']:,} places, were caught.")
    survivors = [mutant for mutant in record["mutants"] if mutant["outcome"] == "survived"]
    if survivors:
        print("\n| survivor | change | tests that ran it |\n| --- | --- | ---: |")
    for mutant in sorted(survivors, key=lambda mutant: mutant["file"]):
        line, change = mutant["change"].split(": ", 1)
        change = change.replace("|", "\\|")
        print(f"| {mutant['file']}:{line} | `{change}` | {mutant['tests']} |")


if __name__ == "__main__":
    show() if sys.argv[1:] == ["--show"] else main()
