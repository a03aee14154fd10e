"""Random lives of memories: what happens to a random model and its memory, and what P must be afterwards.

    python tests/random_lives.py 1234        the case of a number, in words; an error if it fails

The reference is dense and in float64, each example alone (`reference.py`). A gradient of each output of each example is
kept beside the memory, through growth, frozen parameters, budgets, files and forgotten tasks.
"""

import copy
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from memory_models import rows
from ogd.memory import BudgetExceeded, GradientMemory, load
from random_models import OUTPUTS, Case, drawn
from reference import flat, logit_gradients, orthonormal_rows

Row = dict[str, Tensor]  # a gradient by the names of the parameters
LIMITS: list[dict[str, Any]] = [{}, {}, {"per_task": 3}, {"budget": 7, "shrink": True}]
FORMS: list[Callable[[Tensor, Tensor], Any]] = [
    lambda x, y: (x, y),
    TensorDataset,
    lambda x, y: DataLoader(TensorDataset(x, y), 2),
]
SAME = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 2e-2}  # how far a row may be off
CUT = {torch.float64: 1e-7, torch.float32: 1e-5}  # singular values of unit rows below which these count as dependent
EXPECTED = (  # warnings
    "moved without protection",
    "saved with other weights",
    "stored gradients protect nothing",
    "of an update is left after its projection",
    "cannot notice when the model is evaluated",  # the steps here take gradients that no pass has made
)
KNOWN = {"PReLU"}  # words of cases that may fail until what is wrong there is mended


class Failed(AssertionError):
    """A case in which something is wrong."""

    def __init__(self, case: Case) -> None:
        super().__init__(f"{case}\nrun it alone: python tests/random_lives.py {case.seed}")
        self.known = bool(KNOWN & set(case.words))


class Life:
    """A memory, what it should have stored, and what happens to both."""

    def __init__(self, case: Case) -> None:
        self.case, self.rng, self.model = case, case.rng, case.model
        self.tasks: list[list[list[Row]]] = []  # of each task, of each example, a row for each output
        self.frozen: set[str] = set()
        self.outputs = self.rng.choice(list(OUTPUTS))
        self.protected = self._protected()
        limit = self.rng.choice(LIMITS)
        some = {} if len(self.protected) == len(self.trainable()) else {"params": self.protected}
        case.words += [f"outputs: {self.outputs}", *(f"{key}={value}" for key, value in (limit | some).items())]
        options = {"per_task": None, **case.options, **limit, **some}
        self.drawn, self.stored = bool(limit), case.options["dtype"] or case.dtype
        self.memory = GradientMemory(self.model, outputs=OUTPUTS[self.outputs], **options)

    @property
    def params(self) -> dict[str, nn.Parameter]:
        return dict(self.model.named_parameters())

    def trainable(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.params.items() if p.requires_grad}

    def _protected(self) -> list[str]:
        """All that can be trained, or some parameters on which outputs depend."""
        names = list(self.trainable())
        if self.rng.random() < 0.7:
            return names
        (row, *_), *_ = self._rows(*self.case.data(1), names, None)
        used = [name for name, g in row.items() if g.norm() > 1e-3 * max(h.norm() for h in row.values())]
        return sorted(self.rng.sample(used, self.rng.randint(1, len(used))))

    def _rows(self, x: Tensor, y: Tensor, names: Sequence[str], classes: list[int] | None) -> list[list[Row]]:
        """The reference: gradients in float64, each example alone."""
        twin = copy.deepcopy(self.model).double()
        params = {name: p for name, p in twin.named_parameters() if name in names}
        options = {"outputs": OUTPUTS[self.outputs], "params": list(params.values()), "classes": classes}
        found = []
        for one, label in zip((x.double() if x.is_floating_point() else x).split(1), y.split(1), strict=True):
            parts = logit_gradients(twin, one, label, **options).split([p.numel() for p in params.values()], 1)
            shaped = [part.view(-1, *p.shape) for part, p in zip(parts, params.values(), strict=True)]
            found.append([dict(zip(params, row, strict=True)) for row in zip(*shaped, strict=True)])
        return found

    def remember(self) -> None:
        """Another task, after which the model is the same to the last bit, and the same objects."""
        n, form = self.rng.randint(2, 6), self.rng.choice(FORMS)
        x, y = self.case.data(n)
        some = self.outputs in ("mean", "all") and self.rng.random() < 0.3
        classes = sorted(self.rng.sample(range(self.case.classes), 2)) if some else None
        self.case.words.append(f"remember {n}" + (f" of classes {classes}" if some else ""))
        task = self._rows(x, y, [name for name in self.protected if name not in self.frozen], classes)
        before = pictured(self.model)
        try:
            self.memory.remember(form(x, y), classes=classes)
            self.tasks.append(task)
        except BudgetExceeded:
            self.case.words.append("more tasks than the budget holds")
            assert sum(len(each[0]) for each in (*self.tasks, task)) > (self.memory.budget.count or 0)
        check_same(before, pictured(self.model))

    def move(self) -> None:
        """Weights that are somewhere else: training that nobody protected."""
        self.case.words.append("move")
        with torch.no_grad():
            for p in self.trainable().values():
                p.add_(0.3 * torch.randn_like(p))

    def freeze(self) -> None:
        """One more parameter that takes no part in the tasks to come, or all take part again."""
        names = [name for name in self.protected if name not in self.frozen]
        if self.frozen and self.rng.random() < 0.5:
            self.case.words.append("thaw")
            self.frozen = set()
        elif len(names) > 2:
            self.frozen.add(self.rng.choice(names))
            self.case.words.append(f"freeze {', '.join(self.frozen)}")
        for name in self.protected:
            self.params[name].requires_grad_(name not in self.frozen)

    def grow(self) -> None:
        """More classes: gradients of outputs that were there are zero in what is new."""
        if not isinstance(self.model.head, nn.Linear):
            return
        more = self.rng.randint(1, 3)
        self.case.words.append(f"grow by {more}")
        self.model.grow(more)
        self.case.classes += more
        for row in (row for task in self.tasks for example in task for row in example):
            for name in row.keys() & {"head.weight", "head.bias"}:
                row[name] = torch.cat([row[name], row[name].new_zeros(more, *row[name].shape[1:])])

    def forget(self) -> None:
        if len(self.tasks) < 2:
            return
        task = self.rng.randrange(-len(self.tasks), len(self.tasks))
        self.case.words.append(f"forget {task}")
        self.memory.forget(task)
        del self.tasks[task]

    def save(self) -> None:
        """Another memory, from a file."""
        self.case.words.append("save and load")
        outputs = OUTPUTS[self.outputs]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "memory.safetensors"
            self.memory.save(path)
            self.memory = load(path, self.model, **({"outputs": outputs} if callable(outputs) else {}))

    def train(self) -> None:
        """Steps of a protected optimizer with known gradients: together they move the weights by P of their sum."""
        every, steps = self.rng.randint(1, 3), self.rng.randint(1, 4)
        self.case.words.append(f"{steps} steps with every={every}")
        params = self.trainable()
        before = {name: p.detach().clone() for name, p in params.items()}
        total = {name: torch.zeros_like(p) for name, p in params.items()}
        optimizer = torch.optim.SGD(params.values(), lr=0.5)
        with self.memory.protect(optimizer, every=every):
            for _ in range(steps):
                for name, p in params.items():
                    p.grad = torch.randn_like(p)
                    total[name] -= 0.5 * p.grad
                optimizer.step()
        optimizer.zero_grad()
        self.compare(total, {name: p.detach() - before[name] for name, p in params.items()})

    def check(self) -> None:
        """P of a random update, of all parameters or only of some."""
        assert len(self.memory.task_sizes) == len(self.tasks)
        assert self.drawn or self.memory.task_sizes == tuple(sum(map(len, task)) for task in self.tasks)
        assert len(self.memory) <= (self.memory.budget.count or len(self.memory))
        names = list(self.params)
        if self.rng.random() < 0.3:
            names = self.rng.sample(names, self.rng.randint(1, len(names)))
        update = {name: torch.randn_like(self.params[name]) for name in names}
        self.compare(update, self.memory.project(update))

    def compare(self, update: Mapping[str, Tensor], projected: Mapping[str, Tensor]) -> None:
        names = [name for name in update if name in self.protected]
        for name in update.keys() - set(names):
            torch.testing.assert_close(projected[name], update[name])
        if names:
            u, Pu = (flat([t[name] for name in names]) for t in (update, projected))
            lengths = self.matrix(self.protected).norm(dim=1)
            check_projection(self.matrix(names), lengths, u, Pu, self.stored, self.case.dtype)

    def matrix(self, names: Sequence[str]) -> Tensor:
        """G (n, p) of the reference in the columns of some parameters, of the examples that the memory has kept."""
        zeros = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in self.params.items()}
        stored = rows(self.memory).split(self.memory.task_sizes)
        kept = [row for task, G in zip(self.tasks, stored, strict=True) for row in self._kept(task, G, zeros)]
        if not kept:
            return torch.zeros(0, sum(zeros[name].numel() for name in names), dtype=torch.float64)
        return torch.stack([flat([row.get(name, zeros[name]) for name in names]) for row in kept])

    def _kept(self, task: list[list[Row]], G: Tensor, zeros: Row) -> list[Row]:
        """The rows of those of a task's examples whose gradients G are."""
        examples = [torch.stack([flat(list((zeros | row).values())) for row in example]) for example in task]
        kept: list[Row] = []
        for stored in G.split(len(task[0])):
            off = [float((stored - example).norm() / example.norm().clamp(min=1e-12)) for example in examples]
            assert min(off) <= SAME[self.stored], f"a gradient is off by {min(off):.1e}"
            kept += task[off.index(min(off))]
        return kept


EVENTS: dict[Callable[[Life], None], int] = {  # and how often
    Life.remember: 4,
    Life.move: 3,
    Life.freeze: 2,
    Life.grow: 2,
    Life.forget: 1,
    Life.save: 2,
    Life.train: 2,
}


def live(seed: int) -> Case:
    """Draw a case and let it happen; `Failed` says which it was."""
    case = drawn(seed)
    with warnings.catch_warnings():
        for message in EXPECTED:
            warnings.filterwarnings("ignore", f".*{message}")
        try:
            life = Life(case)
            for event in (Life.remember, *case.rng.choices([*EVENTS], [*EVENTS.values()], k=case.rng.randint(1, 5))):
                event(life)
                life.check()
        except Exception as error:
            raise Failed(case) from error
    return case


def pictured(model: nn.Module) -> dict[str, tuple[Any, ...]]:
    """Every module with its mode, every parameter and buffer with its bits."""
    found: dict[str, tuple[Any, ...]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        found[path] = (module, module.training)
        for name, t in {**module._parameters, **module._buffers}.items():
            if t is not None:
                found[f"{path}.{name}"] = (t, t.requires_grad, type(t), t.grad, t.detach().clone())
    return found


def check_same(before: dict[str, tuple[Any, ...]], after: dict[str, tuple[Any, ...]]) -> None:
    assert before.keys() == after.keys()
    for name, (was, *more) in before.items():
        now, *same = after[name]
        assert now is was, f"remember has replaced {name}"
        assert same[:3] == more[:3], f"remember has changed {name}"
        assert all(map(torch.equal, same[3:], more[3:])), f"remember has changed the numbers of {name}"


def check_projection(
    G: Tensor, lengths: Tensor, u: Tensor, Pu: Tensor, stored: torch.dtype, working: torch.dtype
) -> None:
    """Whether P u is that of G, as far as rounding allows; `lengths` are those of the rows in all parameters.

    With unit rows whose smallest singular value is σ, a rounding ε of G turns P by ε / σ, and solving for the
    coefficients in a precision ε' adds ε' / σ². Outputs change by ε, and by ε' / σ.
    """
    norms, size, cut = G.norm(dim=1), float(u.norm()), CUT[working]
    rounding = (norms > 0) & (norms < 1e5 * torch.finfo(working).eps * lengths)  # rows that may be nothing else
    clear = (norms > 0) & ~rounding
    unit = G[clear] / norms[clear, None]
    sigma = torch.linalg.svdvals(unit) if len(unit) else torch.ones(1)
    sigma = sigma / sigma[0]
    smallest = float(sigma[sigma > cut / 30].amin())
    eps = 2 * torch.finfo(stored).eps + 300 * torch.finfo(working).eps
    solving = 30 * torch.finfo(working).eps / smallest
    effect = float((unit @ Pu).abs().amax()) / size if len(unit) else 0.0
    assert effect <= eps + solving + cut, f"an output would change by {effect:.1e} of what it could"
    # what depends on other rows does so no longer when it is rounded to fewer bits than the model has
    unclear = (sigma < 30 * cut) & (sigma > cut / 30) if stored == working else sigma < eps
    slack = (eps + solving) / smallest
    if bool(rounding.any()) or bool(unclear.any()) or slack > 0.3:
        return
    Q = orthonormal_rows(unit, cut) if len(unit) else unit
    off = float((Pu - (u - Q.mT @ (Q @ u))).norm()) / size
    assert off <= slack, f"P u is off by {off:.1e}, more than {slack:.1e}"


if __name__ == "__main__":
    for number in sys.argv[1:]:
        print(live(int(number)))
