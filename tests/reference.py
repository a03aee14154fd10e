"""Slow, obviously correct OGD in float64: what everything fast is compared with. Imports nothing of ogd."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Outputs = str | Callable[[Tensor, Tensor], Tensor]
Logits = Callable[[nn.Module, Tensor], Tensor]


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1).double() for t in tensors])


def trainable(model: nn.Module) -> list[Tensor]:
    return [p for p in model.parameters() if p.requires_grad]


def pseudo_huber(m: Tensor) -> Tensor:
    """h(m) of the remembered loss, with δ = 1/2."""
    return 0.5 * ((1 + 4 * m).sqrt() - 1)


def logit_gradients(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    outputs: Outputs = "true",
    classes: Sequence[int] | None = None,
    params: Sequence[Tensor] | None = None,
    logits: Logits | None = None,
) -> Tensor:
    """The rows of G (n, p), example by example and output by output, each example alone in its batch."""
    params = trainable(model) if params is None else list(params)
    was_training = model.training
    model.eval()
    rows = []
    for i in range(len(x)):
        f = model(x[i : i + 1]) if logits is None else logits(model, x[i : i + 1])
        for value in _chosen(f, y[i : i + 1], outputs, classes):
            grads = torch.autograd.grad(value, params, retain_graph=True, allow_unused=True)
            rows.append(flat([torch.zeros_like(p) if g is None else g for p, g in zip(params, grads, strict=True)]))
    model.train(was_training)
    return torch.stack(rows)


def _chosen(f: Tensor, y: Tensor, outputs: Outputs, classes: Sequence[int] | None) -> list[Tensor]:
    if callable(outputs):
        return list(outputs(f, y).reshape(-1))
    columns = list(range(f.shape[1])) if classes is None else list(classes)
    if outputs == "true":
        return [f[0, int(y[0])]]
    if outputs == "mean":
        return [f[0, columns].mean()]
    return [f[0, k] for k in columns]


def gram_schmidt(G: Tensor, basis: Sequence[Tensor] = (), tolerance: float = 1e-7) -> list[Tensor]:
    """Algorithm 1's set S, vector by vector; a gradient of which only rounding remains is left out."""
    S = list(basis)
    for g in G.double():
        u = g.clone()
        for _ in range(2):  # the second pass removes what rounding left in the first
            for v in S:
                u = u - (u @ v) / (v @ v) * v
        if u.norm() > tolerance * g.norm():
            S.append(u)
    return S


def project_out(S: Sequence[Tensor], g: Tensor) -> Tensor:
    """g̃ = g − Σ_{v ∈ S} proj_v(g)."""
    for v in S:
        g = g - (g @ v) / (v @ v) * v
    return g


def orthonormal_rows(G: Tensor, tolerance: float = 1e-7) -> Tensor:
    """Q (r, p) with orthonormal rows that span the rows of G."""
    G = G.double()
    norms = G.norm(dim=1, keepdim=True)
    G = torch.where(norms > 0, G / norms, torch.zeros_like(G))
    _, sigma, Vh = torch.linalg.svd(G, full_matrices=False)
    return Vh[sigma > tolerance * sigma.max()] if sigma.max() > 0 else Vh[:0]


def project_dense(G: Tensor, update: Tensor) -> Tensor:
    """P u = u − Qᵀ Q u."""
    Q = orthonormal_rows(G)
    u = update.double()
    return u - Q.mT @ (Q @ u)


def project_softly(G: Tensor, update: Tensor, softness: float) -> Tensor:
    """The v that minimises ½ |v − u|² + |S G v|² / 2μ: each right singular vector of S G keeps μ / (σ² + μ) of u."""
    G, u = G.double(), update.double()
    norms = G.norm(dim=1, keepdim=True)
    _, sigma, Vh = torch.linalg.svd(torch.where(norms > 0, G / norms, 0 * G), full_matrices=False)
    return u - Vh.mT @ (sigma**2 / (sigma**2 + softness) * (Vh @ u))


def algorithm_1(
    model: nn.Module,
    tasks: Sequence[tuple[Sequence[tuple[Tensor, Tensor]], tuple[Tensor, Tensor]]],
    lr: float,
    outputs: Outputs = "true",
    momentum: float = 0.0,
) -> None:
    """The paper's Algorithm 1 on `model` in place; a task is (its batches in order, the (x, y) it stores)."""
    params = trainable(model)
    S: list[Tensor] = []
    for batches, (x, y) in tasks:
        velocity = torch.zeros_like(flat(params))
        for xb, yb in batches:
            loss = nn.functional.cross_entropy(model(xb), yb)
            g = project_out(S, flat(torch.autograd.grad(loss, params)))
            velocity = momentum * velocity + g
            step = lr * velocity
            with torch.no_grad():
                for p, d in zip(params, step.split([p.numel() for p in params]), strict=True):
                    p.sub_(d.view_as(p).to(p.dtype))
        S = gram_schmidt(logit_gradients(model, x, y, outputs=outputs, params=params), S)
