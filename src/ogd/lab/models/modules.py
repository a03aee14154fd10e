"""Any `nn.Module` as a stack: the parameters of R modules of one shape side by side, called by `torch.func`.

Runs are computed one after the other. `vmap` over them would turn a convolution into a grouped one, which is slower on
a CPU, and refuse modules with control flow; this way a run has the same bits whoever trains beside it.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from ogd import memory, seeds
from ogd.checks import ArgumentError, check_name
from ogd.lab import catalogue
from ogd.lab.benchmarks.batches import Batch, in_order
from ogd.lab.models.gradient import DenseGradient
from ogd.lab.models.initial import Heads, draw_again
from ogd.lab.models.stack import Stack, run_numbers
from ogd.memory.blocks.pieces import Piece
from ogd.memory.blocks.stacking import stacked
from ogd.memory.gradients.outputs import Outputs

WHOLE = (torch.int32, torch.int64)  # inputs that stay as they are: numbers of words, say
CHUNK_BYTES = 2**28  # what the gradients of single examples may take at a time


class StackedModules(Stack):
    """R modules of one shape, side by side: module i is run `runs[i]`.

    A module must compute every example by itself and draw nothing at random: no batch statistics, no dropout. Its
    frozen parameters stay as they are.

    Examples:
        >>> stack = StackedModules([nn.Linear(4, 3), nn.Linear(4, 3)])
        >>> stack.logits(torch.rand(5, 4)).shape
        torch.Size([2, 5, 3])
    """

    def __init__(self, modules: Sequence[nn.Module], runs: Sequence[int] | None = None) -> None:
        for module in modules:
            check_module(module)
        self.runs = run_numbers(len(modules) if runs is None else runs)
        if len(self.runs) != len(modules):
            raise ArgumentError("runs", f"{len(self.runs)} numbers do not fit {len(modules)} modules")
        params, buffers = stack_module_state(list(modules))
        trained = {name for name, w in modules[0].named_parameters() if w.requires_grad}
        self.params = {name: w.detach().requires_grad_() for name, w in params.items() if name in trained}
        self.fixed = {name: w.detach() for name, w in (*params.items(), *buffers.items()) if name not in trained}
        self.template = copy.deepcopy(modules[0])

    @classmethod
    def made(
        cls, make: Callable[[], nn.Module], *, runs: int | Sequence[int] = 1, seed: int = 0, init: str = "pytorch",
        heads: Heads = (), dtype: torch.dtype = torch.float32,
    ) -> "StackedModules":  # fmt: skip
        """Return a stack of modules that `make` makes, run r with weights drawn from (seed, r) alone."""
        check_name("init", init, catalogue.INITS)
        numbers = run_numbers(runs)
        modules = []
        for run in numbers:
            with torch.random.fork_rng(devices=[]):  # `make` draws from the global generator
                torch.manual_seed(seeds.number(seed, run, "weights"))
                module = make()
            if not isinstance(module, nn.Module):
                raise TypeError(f"model: must be a function that returns an nn.Module, not {type(module).__name__}")
            draw_again(module, init, seeds.generator(seed, run, "init"), heads)
            modules.append(module.to(dtype))
        return cls(modules, numbers)

    def passing(self, x: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        x = self._typed(x)
        with torch.enable_grad():
            z = torch.stack([self._call(self._of(r), x[r]) for r in range(len(self.runs))])
        return (x, z), z.detach()

    def backward(self, tape: tuple[Tensor, Tensor], delta: Tensor) -> DenseGradient:
        return DenseGradient(torch.autograd.grad(tape[1], list(self.params.values()), delta, materialize_grads=True))

    def squares(self, tape: tuple[Tensor, Tensor], delta: Tensor) -> list[Tensor]:
        found = [self._squares(r, tape[0][r], delta[r]) for r in range(len(self.runs))]
        return [torch.stack(runs) for runs in zip(*found, strict=True)]

    def _squares(self, r: int, x: Tensor, delta: Tensor) -> list[Tensor]:
        """The mean over examples of the squared gradient of δ·z, for one run, some examples at a time."""
        params = {name: w[r].detach() for name, w in self.params.items()}
        fixed = {name: w[r] for name, w in self.fixed.items()}

        def loss(params: dict[str, Tensor], x: Tensor, d: Tensor) -> Tensor:
            return (self._call({**params, **fixed}, x[None])[0] * d).sum()

        total = {name: torch.zeros_like(w) for name, w in params.items()}
        step = max(CHUNK_BYTES // sum(w.nbytes for w in params.values()), 1)
        for xs, ds in zip(x.split(step), delta.split(step), strict=True):
            for name, g in vmap(grad(loss), (None, 0, 0))(params, xs, ds).items():
                total[name] += g.square().sum(0)
        return [square / len(x) for square in total.values()]

    @torch.no_grad()
    def logits(self, x: Tensor, columns: Tensor | None = None) -> Tensor:
        x, runs = self._typed(x), range(len(self.runs))
        seen = [x if columns is None else in_order(x, columns[r]) for r in runs]
        return torch.stack([self._call(self._of(r), seen[r]) for r in runs])

    def output_gradients(self, batch: Batch, outputs: str, classes: tuple[int, ...] | None) -> tuple[list[Piece], int]:
        found = []
        for r in range(len(self.runs)):
            x, y = self._typed(batch.x[r]), batch.target[r].argmax(-1)
            pieces, rows = memory.output_gradients(
                self._module(r), x, y, outputs=cast(Outputs, outputs), classes=classes
            )
            found.append(pieces)
        return stacked(found), rows

    def module(self, run: int) -> nn.Module:
        return self._module(self.index(run))

    def _module(self, r: int) -> nn.Module:
        module = copy.deepcopy(self.template)
        with torch.no_grad():
            for name, w in [*module.named_parameters(), *module.named_buffers()]:
                w.copy_(self._of(r)[name])
        return module

    def _typed(self, x: Tensor) -> Tensor:
        return x if x.dtype in WHOLE else x.to(self.dtype)

    def _of(self, r: int) -> dict[str, Tensor]:
        return {name: w[r] for name, w in (*self.params.items(), *self.fixed.items())}

    def _call(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        z = functional_call(self.template, dict(weights), (x,))
        if not isinstance(z, Tensor) or z.ndim != 2:
            raise TypeError(f"model: must map inputs (B, …) to logits (B, C), not to {_describe(z)}")
        return z


def check_module(module: nn.Module) -> None:
    """Raise a ValueError for what a stack cannot compute: examples that depend on one another, and chance."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"model: must be an nn.Module, not {type(module).__name__}")
    for name, part in module.named_modules():
        if getattr(part, "track_running_stats", False) or isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise ArgumentError(
                "model",
                f"{name or type(part).__name__} keeps batch statistics, which couple the examples of a batch "
                "and change outside of any optimizer; use GroupNorm or LayerNorm",
            )
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
            raise ArgumentError(
                "model",
                f"{name or type(part).__name__} draws at random while training, and a run must draw from "
                "(seed, run) alone; leave dropout out, or set p=0",
            )
    if not any(w.requires_grad for w in module.parameters()):
        raise ArgumentError("model", "has no parameters to train")


def _describe(z: object) -> str:
    return f"a tensor of shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
