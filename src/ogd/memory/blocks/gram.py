"""G G'ᵀ of two blocks by the cheapest algorithm, in float64 and a part at a time.

    outer products   K_ij = Σ_ts (A_it · A'_js + 1) (D_it · D'_js)    n m T T' (in + out) multiplications
    columns          K = Σ_chunks R R'ᵀ, R = some columns of G        (n T + m T' + n m) in · out

The second algorithm forms each column of G once and holds only a chunk of them. The first forms none. The product of
a block with itself is symmetric, so only about half of it is computed.
"""

from math import lcm
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ogd.memory.blocks.block import Block
    from ogd.memory.blocks.factored import Factored

CHUNK = 2**23  # float64 numbers that are expanded at a time: 64 MiB
TILE = 64  # the least number of rows in a tile of a symmetric product
PANEL = 48  # the same for many columns, a multiple of the rows that matrix kernels take at a time: 24, 12, 8 or 6
STRIP = 2**19  # numbers of those columns that are taken at a time, few enough to stay in the cache
LEAST = 1024  # the least number of columns taken at a time
TRAFFIC = 16  # the cost of multiplying and adding one pair of outer products, in multiplications


def factored_gram(one: "Factored", other: "Factored") -> Tensor:
    """Return G G'ᵀ (..., n, m) of two sums of outer products."""
    single = one.T == other.T == 1
    pairs = single or pairs_cost(one, other) < columns_cost(one, other)
    return gram_by_pairs(one, other) if pairs else gram_by_parts(one, other)


def gram_by_parts(one: "Block", other: "Block") -> Tensor:
    """Return G G'ᵀ (..., n, m) of any two blocks of the same parameters, parameter by parameter."""
    if len(parts := one.split()) == 1:
        return gram_by_columns(one, other)
    pairs = zip(parts, parts if one is other else other.split(), strict=True)
    return torch.stack([gram_by_columns(a, b) for a, b in pairs]).sum(0)


def pairs_cost(one: "Factored", other: "Factored") -> int:
    """Estimate the number of multiplications of `gram_by_pairs`."""
    width = one.A.shape[-1] + one.D.shape[-1] + TRAFFIC
    return one.n * one.T * other.n * other.T * width // (2 if one is other else 1)


def columns_cost(one: "Block", other: "Block") -> int:
    """Estimate the number of multiplications of `gram_by_columns`."""
    if one is other:
        return one.width * (one.n * one.products + one.n * one.n // 2)
    return one.width * (one.n * one.products + other.n * other.products + one.n * other.n)


def gram_by_pairs(one: "Factored", other: "Factored") -> Tensor:
    """Return K_ij = Σ_ts (A_it · A'_js + 1) (D_it · D'_js)."""
    if one.T == other.T == 1 and (one is not other or one.lead or one.n < 8 * TILE):
        return _products(one, other)
    lead = max(one.lead.numel(), 1)
    step = max(int((CHUNK / lead) ** 0.5 / max(one.T, other.T)), 1)
    if one is other:
        step = min(step, max(TILE, -(-one.n // 8)))
    K = one.A.new_zeros(*one.lead, one.n, other.n, dtype=torch.float64)
    for i in range(0, one.n, step):
        rows = one[i : min(i + step, one.n)]
        for j in range(i if one is other else 0, other.n, step):
            columns = other[j : min(j + step, other.n)]
            M = _products(rows, columns).unflatten(-1, (columns.n, other.T)).sum(-1)
            M = M.unflatten(-2, (rows.n, one.T)).sum(-2)
            K[..., i : i + step, j : j + step] = M
            if one is other and j > i:
                K[..., j : j + step, i : i + step] = M.mT
    return K


def _products(one: "Factored", other: "Factored") -> Tensor:
    M = one.A.double() @ other.A.double().mT  # (..., n·T, m·T')
    if one.bias:
        M += 1
    return M.mul_(one.D.double() @ other.D.double().mT)


def gram_by_columns(one: "Block", other: "Block") -> Tensor:
    """Return Σ R R'ᵀ over chunks R of the columns."""
    K = one.rows(0, 0).new_zeros(*one.lead, one.n, other.n)
    grain = lcm(one.grain, other.grain)
    held = max(one.lead.numel(), 1) * max(one.n + (0 if one is other else other.n), 1)
    step = max(CHUNK // held // grain, 1) * grain
    for start in range(0, one.width, step):
        stop = min(start + step, one.width)
        R = one.columns(start, stop)
        if one is other:
            add_lower(K, R)
        else:
            K += R @ other.columns(start, stop).mT
    return mirror_lower(K) if one is other else K


def squares_by_columns(block: "Block") -> Tensor:
    """Return |g_i|² of every row, (..., n), summed over chunks of the columns."""
    total = block.rows(0, 0).new_zeros(*block.lead, block.n)
    step = max(CHUNK // max(block.lead.numel() * block.n, 1) // block.grain, 1) * block.grain
    for start in range(0, block.width, step):
        total += block.columns(start, min(start + step, block.width)).square().sum(-1)
    return total


def add_lower(K: Tensor, R: Tensor) -> None:
    """Do K += R Rᵀ in float64, on and below the diagonal. Entries above it become invalid."""
    n = R.shape[-2]
    panel = max(PANEL, n // 8 // PANEL * PANEL)
    for strip in R.split(max(STRIP // max(n, 1), LEAST), -1):
        S = strip.double()
        for j in range(0, n, panel):  # tall products: wide ones take 6 % longer
            K[..., j:, j : j + panel] += S[..., j:, :] @ S[..., j : j + panel, :].mT


def mirror_lower(K: Tensor) -> Tensor:
    """Return the symmetric matrix whose lower triangle is that of K."""
    return K.tril_() + K.tril(-1).mT
