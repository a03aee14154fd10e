"""Stored weights that are now computed, w = φ(θ), by pruning, weight norm or any `torch.nn.utils.parametrize`.

The chain rule gives the gradients with respect to θ:

    ∂f/∂θ = Jᵀ g        g = ∂f/∂w as stored, J the Jacobian of φ at the present θ
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ogd.memory.blocks.dense import Dense
from ogd.memory.blocks.pieces import Piece
from ogd.memory.model.parameters import replace_parameters
from ogd.memory.projection.store import Store


@dataclass(frozen=True)
class Reparametrization:
    """w = φ(θ): the names of θ, their tensors, and φ."""

    theta: Mapping[str, Tensor]
    phi: Callable[[dict[str, Tensor]], Tensor]

    def pull_back(self, G: Tensor) -> dict[str, Tensor]:
        """Return the rows of each θ from the rows (n, p) of w."""
        names, theta = list(self.theta), [t.detach() for t in self.theta.values()]
        w, vjp, *_ = torch.func.vjp(lambda *t: self.phi(dict(zip(names, t, strict=True))), *theta)
        rows = [vjp(g.view_as(w).to(w)) for g in G]
        return {name: torch.stack([row[i].flatten() for row in rows]) for i, name in enumerate(names)}


def reparametrization_of(module: nn.Module, path: str, leaf: str) -> Reparametrization | None:
    """Return how the module at `path` computes its former parameter `leaf`; None if it does not compute it."""
    prefix = f"{path}." if path else ""
    if parametrize.is_parametrized(module, leaf):
        inner = module.get_submodule(f"parametrizations.{leaf}")
        theta = {f"{prefix}parametrizations.{leaf}.{key}": p for key, p in inner.named_parameters()}

        def phi(values: dict[str, Tensor]) -> Tensor:
            with replace_parameters(inner, {id(theta[name]): value for name, value in values.items()}):
                w: Tensor = inner()
            return w

        return Reparametrization(theta, phi)
    mask, original = mask_of(module, leaf), module._parameters.get(f"{leaf}_orig")
    if mask is not None and original is not None:
        name = f"{prefix}{leaf}_orig"
        return Reparametrization({name: original}, lambda t: t[name] * mask.to(t[name].dtype))
    return None


def mask_of(module: nn.Module, leaf: str) -> Tensor | None:
    """Return the mask that torch.nn.utils.prune has put on a parameter; None if there is none."""
    return module._buffers.get(f"{leaf}_mask")


def pull_back_store(store: Store, found: Mapping[str, Reparametrization]) -> Store:
    """Return the store with dense rows of θ in place of the rows of each computed weight."""
    pieces: list[Piece] = []
    for piece in store.pieces:
        if not any(name in found for name in piece.names):
            pieces.append(piece)
            continue
        for name in piece.names:
            for part in piece.only({name}):
                pieces += _pull_back_piece(part, found[name]) if name in found else [part]
    shapes = {name: shape for name, shape in store.shapes.items() if name not in found}
    shapes |= {name: t.shape for phi in found.values() for name, t in phi.theta.items()}
    after = Store(pieces, store.tasks, shapes, store.rows_per_example, store.sharded)
    after.grams = {key: K for key, K in store.grams.items() if not key & set(found)}
    return after


def _pull_back_piece(piece: Piece, phi: Reparametrization) -> list[Piece]:
    rows = phi.pull_back(piece.block.rows(0, piece.block.n))
    return [Piece((name,), Dense(G.to(piece.block.dtype)), piece.start) for name, G in rows.items()]
