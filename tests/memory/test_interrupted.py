"""Ctrl-C at any line inside the memory leaves it as it was or as it would be, and the same call works again."""

import ast
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn import functional

import ogd.memory
from memory_models import moved, rows
from ogd.memory import ExampleMemory, GradientMemory
from ogd.memory.examples import prefetch
from ogd.memory.loading import KINDS
from ogd.memory.optimizers.step_hooks import is_protected
from reference import flat, trainable

HOME = f"{Path(ogd.memory.__file__).parent}/"
PURE = tuple(
    f"{HOME}{name}"
    for name in (
        "blocks", "projection", "gradients", "inputs", "ranks", "checks", "shares", "state", "model/names",
        "model/walking", "protection/watching", "rehearsal/answers", "rehearsal/examples", "rehearsal/packed",
        "rehearsal/saved",
    )
)  # fmt: skip
CO_GENERATOR = 0x20
Point = tuple[str, int, str]


@cache
def with_lines(path: str) -> frozenset[int]:
    """The lines of `with`: an exception that a tracer raises there would skip __exit__, as no signal does."""
    nodes = [node for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))) if isinstance(node, ast.With)]
    return frozenset(item.context_expr.lineno for node in nodes for item in node.items)


class Tracer:
    """Notes each line, call and return in the memory's code, and raises KeyboardInterrupt at one of them."""

    def __init__(self, at: int = -1):
        self.at = at
        self.seen: list[Point] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> "Tracer | None":
        code, line = frame.f_code, frame.f_lineno
        path = code.co_filename
        if not path.startswith(HOME) or code.co_name == "<genexpr>":  # which runs once more when it is given up
            return None
        # a generator that is interrupted where it yields cannot clean up, and no signal comes there
        skipped = event == "exception" or (event == "return" and code.co_flags & CO_GENERATOR)
        if not skipped and line not in with_lines(path):
            self.seen.append((path, line, event))
            if len(self.seen) - 1 == self.at:
                raise KeyboardInterrupt
        return None if path.startswith(PURE) else self  # what changes no memory is interrupted only where it is called

    def interrupts(self, action: Callable[[], Any]) -> bool:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            action()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


def points(seen: list[Point]) -> list[int]:
    """Where to interrupt: the first and the last time at each place."""
    last = {point: i for i, point in enumerate(seen)}
    first = {point: i for i, point in reversed([*enumerate(seen)])}
    return sorted({*first.values(), *last.values()})


class Case:
    """A memory of two tasks with a protected optimizer, and data of a third task."""

    def __init__(self, keep: str, every: Any = 3, seed: int = 0, **options: Any) -> None:
        torch.manual_seed(seed)
        # BatchNorm has statistics to keep
        self.model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
        self.memory = KINDS[keep](self.model, 4, **options)  # type: ignore[arg-type]
        self.way: dict[str, Any] = {"every": every}
        x, y = torch.randn(12, 4).double(), torch.arange(12) % 3
        for task in range(2):
            self.memory.remember((x[task * 4 :][:4], y[task * 4 :][:4]))
        self.new = x[8:], y[8:]
        self.start = flat(trainable(self.model))
        self.G = self.rows()
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1, momentum=0.5)
        self.memory.protect(self.optimizer, **self.way)
        for _ in range(2):
            self.step()
        self.stored: dict[str, Any] = {}

    def rows(self) -> Tensor:
        if isinstance(self.memory, GradientMemory):
            return rows(self.memory)
        return torch.zeros(0, sum(p.numel() for p in trainable(self.model)), dtype=torch.float64)

    def step(self) -> None:
        self.optimizer.zero_grad()
        functional.cross_entropy(self.model(self.new[0]), self.new[1]).backward()
        self.optimizer.step()

    def state(self) -> tuple[tuple[Any, ...], Tensor]:
        """All that makes the memory what it is: what must be equal, and numbers that may differ by rounding."""
        memory = self.memory
        if isinstance(memory, ExampleMemory):
            numbers = [lot.z.flatten() for lot in memory.examples.groups]
            kept: list[Any] = [
                memory.examples.fingerprint,
                memory.seed,
                memory.draws,
                memory._progress,
                memory.observed,
            ]
        else:
            numbers = [rows(memory).flatten(), memory._drift.rows]
            kept = [
                memory.store.rows_per_example,
                *(memory._binding.tensors.get(n) is p for n, p in self.model.named_parameters()),
            ]
        names = sorted(memory._statistics.names), sorted(memory._statistics._hooks)
        protected = is_protected(self.optimizer), sum(p.active for p in memory._protections)
        return (len(memory), memory.task_sizes, memory.nbytes, kept, names, protected), torch.cat(numbers)

    def weights(self) -> Tensor:
        return flat(trainable(self.model))

    def leak(self) -> float:
        """How much the remembered outputs have changed, to first order."""
        return float((self.G @ moved(self.model, self.start)).abs().max())


def before_protect(case: Case) -> None:
    case.memory.unprotect()
    case.optimizer = optim.SGD(case.model.parameters(), lr=0.1)


def before_both(case: Case) -> None:
    case.memory.protect(optim.SGD(case.model[:1].parameters(), lr=0.1), **case.way)  # type: ignore[index]


def before_load(case: Case) -> None:
    case.memory.settle()
    case.stored = case.memory.state_dict()
    case.memory.forget(0)
    case.memory._statistics.names = set()


def before_observe(case: Case) -> None:
    for _ in range(2):
        case.memory.forget(0)
    case.memory.observe(*case.new)


def before_rename(case: Case) -> None:
    assert isinstance(case.model, nn.Sequential)
    head = case.model[3]
    del case.model[3]
    case.model.head = head


def nothing(case: Case) -> None:
    """The call comes first."""


CALLS: dict[str, tuple[Callable[[Case], None], Callable[[Case], Any]]] = {  # what comes before, and the call
    "settle": (nothing, lambda case: case.memory.settle()),
    "remember": (nothing, lambda case: case.memory.remember(case.new)),
    "forget": (nothing, lambda case: case.memory.forget(0)),
    "load": (before_load, lambda case: case.memory.load_state_dict(case.stored)),
    "protect": (before_protect, lambda case: case.memory.protect(case.optimizer, **case.way)),
    "unprotect": (nothing, lambda case: case.memory.unprotect()),
    "unprotect both": (before_both, lambda case: case.memory.unprotect()),
    "observe": (before_observe, lambda case: case.memory.observe(*case.new)),
    "stats": (nothing, lambda case: case.memory.stats()),
    "save": (nothing, lambda case: case.memory.state_dict()),
    "rename": (before_rename, lambda case: case.memory.state_dict()),
}
GRADIENTS: dict[str, Any] = {"keep": "gradients"}
REHEARSED: dict[str, Any] = {"keep": "examples"}
SHRINK = {"budget": 8, "shrink": True}
TABLE: list[tuple[str, dict[str, Any]]] = [
    *((call, GRADIENTS) for call in CALLS if call != "observe"),
    *((call, REHEARSED) for call in CALLS if call not in ("settle", "stats", "save", "rename")),
    ("remember", GRADIENTS | SHRINK),
    ("remember", REHEARSED | SHRINK),
    ("load", GRADIENTS | SHRINK),
]


def same(one: tuple[tuple[Any, ...], Tensor], other: tuple[tuple[Any, ...], Tensor]) -> bool:
    return one[0] == other[0] and torch.allclose(one[1], other[1], rtol=0, atol=1e-10)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a generator that is given up
@pytest.mark.parametrize(
    ("call", "kind"), TABLE, ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.values()))
)
def test_an_interrupted_call_leaves_the_old_state_or_the_new(call: str, kind: dict[str, Any]) -> None:
    before, action = CALLS[call]

    def prepared() -> Case:
        case = Case(**kind)
        before(case)
        return case

    whole, tracer = prepared(), Tracer()
    old, w_old = whole.state(), whole.weights()
    assert not tracer.interrupts(lambda: action(whole))
    new, w_new = whole.state(), whole.weights()
    case, params = None, []
    for k in points(tracer.seen):
        if case is None:
            case = prepared()
            params = list(case.model.parameters())
        interrupted = Tracer(k).interrupts(lambda case=case: action(case))  # or it has less to do than the first time
        torch.set_grad_enabled(True)  # a tracer's exception where a `with` ends may skip __exit__; a signal's does not
        place, state, w = tracer.seen[k], case.state(), case.weights()
        assert same(state, new) or (interrupted and same(state, old)), place
        assert min(float((w - end).abs().max()) for end in (w_old, w_new)) < 1e-10, place
        assert all(p is q for p, q in zip(case.model.parameters(), params, strict=True)), place
        if not same(state, old):  # the old state is interrupted again
            case = None
    case = case or prepared()
    action(case)
    assert same(case.state(), new)
    torch.testing.assert_close(case.weights(), w_new, rtol=0, atol=1e-10)


@pytest.mark.parametrize("every", [1, 3, "auto"])
def test_an_interrupted_step_is_projected_by_the_next(every: Any) -> None:
    case = Case("gradients", every=every)
    events = 0
    for _ in range(4):  # each step of a window
        tracer = Tracer()
        assert not tracer.interrupts(case.step)
        events = max(events, len(tracer.seen))
    case.memory.settle()
    assert case.leak() < 1e-10
    before, hits = case.weights(), 0
    for k in range(0, events, 3):
        hits += Tracer(k).interrupts(case.step)
        torch.set_grad_enabled(True)
        if k % 2:
            case.step()
        case.memory.settle()
        assert case.leak() < 1e-10, k
    assert hits > 20
    assert float((case.weights() - before).norm()) > 1e-3


def test_a_half_made_correction_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    case, whole = Case("gradients"), Case("gradients")
    w = case.weights()
    corrected = []

    def interrupted(self: Any, params: list[Tensor], c: Tensor) -> None:
        add(self, params, c)
        corrected.append(len(params))
        if len(corrected) == 2:
            raise KeyboardInterrupt

    (protection,) = case.memory._protections
    assert len(protection.projector.G.terms) > 2  # type: ignore[union-attr]
    kind = type(protection.projector.G.terms[0][0])  # type: ignore[union-attr]
    add = kind.add_combination
    monkeypatch.setattr(kind, "add_combination", interrupted)
    with pytest.raises(KeyboardInterrupt):
        case.memory.settle()
    torch.testing.assert_close(case.weights(), w, rtol=0, atol=1e-15)
    monkeypatch.undo()
    case.memory.settle()
    whole.memory.settle()
    torch.testing.assert_close(case.weights(), whole.weights(), rtol=0, atol=1e-14)
    assert case.leak() < 1e-12


def since(case: Case) -> list[int]:
    """Steps since the last rehearsal."""
    return [steps for steps, _ in case.memory._progress]  # type: ignore[attr-defined]


def test_a_rehearsal_that_is_interrupted_stays_due() -> None:
    case = Case(**REHEARSED, every=3)  # two steps since the last
    tracer = Tracer()
    assert not tracer.interrupts(Case(**REHEARSED, every=3).step)
    for k in points(tracer.seen):
        Tracer(k).interrupts(case.step)
        torch.set_grad_enabled(True)
        drawn = case.memory.draws  # type: ignore[attr-defined]
        if since(case) == [2]:
            case.step()
            assert case.memory.draws == drawn + 1  # type: ignore[attr-defined]
        assert since(case) == [0], tracer.seen[k]
        for _ in range(2):
            case.step()


def test_batches_that_were_interrupted_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = (Case(**REHEARSED, seed=seed).memory.examples for seed in (0, 1))  # type: ignore[attr-defined]
    batches = prefetch.Prefetcher()
    batches.batch(first, 0, 0, 2)
    with monkeypatch.context() as patched:
        patched.setattr(prefetch, "_draw_ahead", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            batches.batch(other, 0, 0, 2)
    (expected,) = other.batches(prefetch.draw(0, 0, len(other), 2))
    assert torch.equal(batches.batch(other, 0, 0, 2).x, expected.x)
