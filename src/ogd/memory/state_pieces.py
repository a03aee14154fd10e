"""The pieces of G as entries of a state, and back. Nothing read is trusted: all of it is checked."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ogd.checks import is_whole
from ogd.memory.algebra.blocks import Block, Convolved, Dense, Factored
from ogd.memory.algebra.sparse import Sparse
from ogd.memory.algebra.store import Piece
from ogd.tensor_files import is_finite

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def entry_of(piece: Piece) -> dict[str, Any]:
    """All of a piece but its tensors, as JSON values."""
    block = piece.block
    entry: dict[str, Any] = {"names": list(piece.names), "start": piece.start, "rows": block.n}
    if isinstance(block, Factored):
        entry |= {"bias": block.bias, "T": block.T, "out_first": block.out_first}
    if isinstance(block, Convolved):
        geometry = {"stride": block.stride, "padding": block.padding, "dilation": block.dilation}
        entry["convolved"] = {key: list(size) for key, size in geometry.items()} | {"groups": block.groups}
        entry["bias"] = block.bias
    if isinstance(block, Sparse):
        entry |= {"sparse": True, "T": block.T}
    return entry


def piece_of(
    i: int,
    entry: Mapping[str, Any],
    tensors: dict[str, Tensor],
    shapes: Mapping[str, torch.Size],
    params: Mapping[str, Tensor],
    plain: Mapping[str, str],
) -> Piece:
    """Piece i from its entry and its tensors, which are taken out of `tensors`; all of it is checked."""
    names = tuple(plain[name] for name in entry["names"])
    if not names:
        raise ValueError(f"piece {i}: its names are empty; a piece belongs to one parameter or two")
    where = f"piece {i} ({', '.join(names)})"
    sizes = [shapes[name] for name in names]
    rows, start = whole(entry["rows"], 1), whole(entry["start"], 0)
    block: Block
    if "sparse" in entry:
        T, index, D = whole(entry["T"], 1), tensors.pop(f"{i}.index"), tensors.pop(f"{i}.D")
        V = _rows_read(where, index, rows * T, sizes[0])
        block, wanted = Sparse(index, D, V, T), [(D, (rows * T, sizes[0][1:].numel()))]
        fits = len(names) == 1
    elif "convolved" in entry:
        X, D, bias = tensors.pop(f"{i}.X"), tensors.pop(f"{i}.D"), bool(entry["bias"])
        block = _convolved(where, X, D, bias, sizes[0], entry["convolved"])
        wanted = [(X, (rows, *X.shape[1:])), (D, (rows, *D.shape[1:]))]
        fits = len(names) == 1 + bias and (not bias or sizes[1] == sizes[0][:1])
    elif "T" in entry:
        T, bias, out_first = whole(entry["T"], 1), bool(entry["bias"]), bool(entry["out_first"])
        A, D = tensors.pop(f"{i}.A"), tensors.pop(f"{i}.D")
        block = Factored(A, D, bias=bias, T=T, out_first=out_first)
        out, into = (sizes[0][0], sizes[0][1:].numel()) if out_first else (sizes[0][-1], sizes[0][:-1].numel())
        wanted = [(A, (rows * T, into)), (D, (rows * T, out))]
        fits = len(names) == 1 + bias and len(sizes[0]) > 1 and (not bias or sizes[1] == (out,))
    else:
        G = tensors.pop(f"{i}.G")
        block, wanted, fits = Dense(G), [(G, (rows, sizes[0].numel()))], len(names) == 1
    for tensor, shape in wanted:
        if not fits or tensor.shape != shape:
            raise ValueError(f"{where}: a tensor of shape {tuple(tensor.shape)} where {shape} belongs")
        if tensor.dtype not in DTYPES or not is_finite(tensor):
            raise ValueError(f"{where}: holds values that are not finite floating-point numbers")
    p = params[names[0]]
    return Piece(names, block.to(p.device, wanted[0][0].dtype), start)


def _rows_read(where: str, index: Tensor, count: int, size: torch.Size) -> int:
    """How many rows the table of a sparse piece has; check that it reads only those."""
    V = size[0] if len(size) == 2 else 0
    if index.dtype != torch.int32 or index.shape != (count,) or not bool(((index >= 0) & (index < V)).all()):
        raise ValueError(f"{where}: its index does not hold {count} rows of a table of {V}")
    return V


def _convolved(
    where: str, X: Tensor, D: Tensor, bias: bool, weight: torch.Size, geometry: Mapping[str, Any]
) -> Convolved:
    """A convolution's block; its input, its output and its weight must fit together."""
    least = {"stride": 1, "padding": 0, "dilation": 1}
    stride, padding, dilation = ([whole(v, low) for v in geometry[key]] for key, low in least.items())
    groups, kernel = whole(geometry["groups"], 1), weight[2:] if len(weight) == 4 else (1, *weight[2:])
    if len(kernel) != 2 or X.ndim != 4 or D.ndim != 4 or {len(stride), len(padding), len(dilation)} != {2}:
        raise ValueError(f"{where}: its weight, input and output are not those of a convolution")
    axes = zip(X.shape[2:], kernel, stride, padding, dilation, strict=True)
    out = [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in axes]
    if X.shape[1] != groups * weight[1] or D.shape[1:] != (weight[0], *out) or weight[0] % groups:
        shapes = f"an input of {tuple(X.shape[1:])} and an output of {tuple(D.shape[1:])}"
        raise ValueError(f"{where}: {shapes} do not fit a weight of {tuple(weight)}")
    pairs = [(int(size[0]), int(size[1])) for size in (kernel, stride, padding, dilation)]
    return Convolved(X, D, pairs[0], pairs[1], pairs[2], pairs[3], groups, bias)


def whole(value: Any, least: int) -> int:
    """A whole number of at least `least`, or a ValueError."""
    if not is_whole(value, least):
        raise ValueError(f"the state holds {value!r} where a whole number of at least {least} belongs")
    return int(value)
