"""Compute the remembered loss of examples whose outputs are kept as their largest probabilities.

    ℓ = Σ_t w_t (a KL(q_t ‖ p_t) + b CE(p_t, y_t)),    p = softmax(z)

q is the remembered distribution over K outputs and all others taken together, p the model's over the same K + 1, and t
a position that counts. The gradient is

    ∂ℓ/∂z_c = w (a (p_c − q_c) + b (p_c − [c = y])),    q_c = q_rest · p_c / p_rest for an output that is not kept.

It is computed together with the loss, chunk by chunk. So the scores of a vocabulary are held twice, as z and as its
gradient, and never in float32 if the model works in bfloat16.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ogd.memory.data.labels import IGNORED
from ogd.memory.examples.top_probabilities import TopProbabilities, row_chunks, slices, widen


def divergence_loss(z: Tensor, remembered: TopProbabilities, y: Tensor | None, w: Tensor, a: float) -> Tensor:
    """Return Σ ℓ, given scores z (…, C), labels y (…) or None for b = 0, and the weights w (…) of the positions."""
    logs, places = remembered.log_probabilities(), remembered.places
    labels = None if y is None else y.long().flatten()
    found: Tensor = _DivergenceLoss.apply(  # type: ignore[no-untyped-call]
        z.reshape(-1, z.shape[-1]), logs.flatten(0, -2), places.flatten(0, -2), labels, w.flatten(), a
    )
    return found


def divergences(logp: Tensor, remembered: TopProbabilities) -> Tensor:
    """Return KL(q ‖ p) of each position, given p as log-probabilities of the kept outputs and all others (…, K + 1)."""
    logq = remembered.log_probabilities(logp.dtype)
    found: Tensor = (logq.exp() * (logq - logp)).sum(-1).clamp(min=0)
    return found


@torch.no_grad()
def divergences_of_scores(z: Tensor, remembered: TopProbabilities) -> Tensor:
    """Return KL(q ‖ p) of each position, given scores z (…, C)."""
    rows, places = z.reshape(-1, z.shape[-1]), remembered.places.flatten(0, -2)
    chunks = row_chunks(torch.arange(len(rows), device=z.device), z.shape[-1])
    logp = torch.cat([_grouped(widen(rows[part]), places[part]) for part in chunks])
    return divergences(logp.view(*z.shape[:-1], -1), remembered)


def _grouped(f: Tensor, places: Tensor) -> Tensor:
    """Return the log-probabilities (n, K + 1) of the outputs at some places and of all others, and overwrite f."""
    total = f.logsumexp(1, keepdim=True)
    kept = f.gather(1, places)
    others = f.scatter_(1, places, -torch.inf).logsumexp(1, keepdim=True)
    return torch.cat([kept, others], 1) - total


class _DivergenceLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, logq: Tensor, places: Tensor, y: Tensor | None, w: Tensor, a: float) -> Tensor:
        all_count = bool(w.all())
        empty = torch.empty_like if all_count else torch.zeros_like
        gradient = empty(z) if ctx.needs_input_grad[0] else None
        loss = torch.zeros((), dtype=torch.promote_types(z.dtype, torch.float32), device=z.device)
        for rows in slices(len(z), z.shape[1]) if all_count else row_chunks(w.nonzero().flatten(), z.shape[1]):
            f = widen(z[rows])
            at, weight, log_q = places[rows], w[rows].to(f.dtype).unsqueeze(1), logq[rows].to(f.dtype)
            b, label = torch.zeros_like(weight), None
            if y is not None:
                label = y[rows].clamp(min=0).unsqueeze(1)
                b = weight * (y[rows] != IGNORED).unsqueeze(1)
                loss -= (b * f.gather(1, label)).sum()
            # f becomes e = exp(f − largest) of the outputs that are not kept: one exponential for each output
            kept = f.gather(1, at)
            largest = f.scatter_(1, at, -torch.inf).amax(1, keepdim=True)
            e = f.sub_(largest).exp_()
            s = e.sum(1, keepdim=True)
            log_p = torch.cat([kept, largest + s.log()], 1)
            total = log_p.logsumexp(1, keepdim=True)
            log_p -= total
            q, p = log_q.exp(), log_p.exp()
            loss += (a * weight * q * (log_q - log_p)).sum() + (b * total).sum()
            if gradient is None:
                continue
            g = (a * weight + b) * p - a * weight * q  # of the kept outputs, and of all others together
            e.mul_(g[:, -1:] / s).scatter_(1, at, g[:, :-1])
            if label is not None:
                e.scatter_add_(1, label, -b)
            gradient[rows] = e.to(gradient.dtype)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        g = gradient if outer == 1 else gradient * outer.to(gradient.dtype)  # the scores of a vocabulary are large
        return g, None, None, None, None, None
