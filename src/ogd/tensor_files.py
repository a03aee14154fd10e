"""Write and read safetensors files with a JSON document in the metadata and a digest of everything.

A file that was changed, by a faulty disk or by a person, does not match its digest and is refused.
"""

import hashlib
import json
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ogd import json_files
from ogd.files import SPECIAL, is_special, replacing

DIGEST = "digest"  # its key in the document
DTYPES = {  # safetensors' names
    **{f"F{8 * t.itemsize}": t for t in (torch.float16, torch.float32, torch.float64)},
    **{f"I{8 * t.itemsize}": t for t in (torch.int8, torch.int16, torch.int32, torch.int64)},
    "BF16": torch.bfloat16,
    **{f"U{8 * t.itemsize}": t for t in (torch.uint8, torch.uint16, torch.uint32, torch.uint64)},
    "BOOL": torch.bool,
}
PART = 2**22  # numbers that are checked at a time
MOST_HEADER, MOST_PARTS = 32 * 2**20, 200_000  # largest header: bytes, and objects, since a tensor may be empty


def write(path: Path, key: str, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a document under `key` and tensors; readers see the complete old file or the complete new one."""
    tensors = {name: t.detach().contiguous().cpu() for name, t in tensors.items()}
    whole = {**document, DIGEST: digest(document, tensors)}
    with replacing(path) as temporary:
        try:
            # one key of metadata: the order of several keys varies, and with it the file
            _save(tensors, temporary, {key: json.dumps(whole)})
            _check_header(temporary)
        except SafetensorError as error:  # for example, the disk is full
            raise OSError(f"it could not be written ({error})") from error


def read(path: Path, key: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the document and the tensors of a file, or raise a ValueError that names the damage.

    `document["digest"]` is None if the file has no digest.
    """
    if is_special(path):
        raise ValueError(f"it is {SPECIAL}")
    try:
        _check_header(path)
        with safe_open(path, framework="pt") as file:  # checks the types, shapes and offsets in the header
            metadata = file.metadata() or {}
        tensors = _tensors(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
    except (SafetensorError, OSError) as error:
        raise ValueError(f"not a safetensors file, or a damaged one ({error})") from error
    if key not in metadata:
        raise ValueError(f"a safetensors file, but not one of ours: its metadata has no {key!r}")
    try:
        document = json_files.parse(metadata[key].encode())
    except ValueError as error:
        raise ValueError(f"its metadata is damaged ({error})") from error
    if not isinstance(document, dict):
        raise ValueError("its metadata is damaged (not an object)")
    expected = document.pop(DIGEST, None)
    if expected is not None and expected != digest(document, tensors):
        raise ValueError("its content does not match its digest: it was damaged or altered after it was written")
    return {**document, DIGEST: expected}, tensors


def _tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file whose header is valid.

    safetensors would map the file into memory: if the file shrinks later, reading the tensors kills the process.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        found = {}
        for name, about in header.items():
            if about["dtype"] not in DTYPES:
                raise ValueError(f"its tensor {name!r} is of type {about['dtype']!r}, which ogd does not write")
            t = torch.empty(about["shape"], dtype=DTYPES[about["dtype"]])
            file.seek(8 + size + about["data_offsets"][0])
            if t.numel() and file.readinto(t.view(-1).view(torch.uint8).numpy().data) != t.nbytes:
                raise ValueError("it shrank while it was read")
            found[name] = t
    return found


def _save(tensors: dict[str, Tensor], temporary: Path, metadata: dict[str, str]) -> None:
    """Save in a folder that `files.sweep` recognises, because safetensors writes a hidden file of its own first."""
    folder = temporary.with_name(f"{temporary.name[:-8]}{secrets.token_hex(4)}")
    folder.mkdir()
    try:
        save_file(tensors, folder / "tensors", metadata)
        (folder / "tensors").replace(temporary)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_header(path: Path) -> None:
    """Raise a ValueError if the header alone would take hundreds of megabytes."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if MOST_HEADER < size < path.stat().st_size:
            raise ValueError(f"its header has {size:,} bytes; at most {MOST_HEADER:,} are read")
        if file.read(min(size, MOST_HEADER)).count(b"{") > MOST_PARTS:
            raise ValueError(f"its header has more than {MOST_PARTS:,} parts")


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in files and messages: "float32".

    Examples:
        >>> dtype_name(torch.bfloat16)
        'bfloat16'
    """
    return str(dtype).removeprefix("torch.")


def is_finite(t: Tensor) -> bool:
    """Return whether all numbers are finite. A finite sum proves it in a fraction of the time and memory.

    Examples:
        >>> is_finite(torch.zeros(3)), is_finite(torch.tensor([1.0, float("nan")])), is_finite(torch.empty(0))
        (True, False, True)
        >>> is_finite(torch.tensor([3e38, 3e38])), is_finite(torch.tensor([float("inf"), float("-inf")]))
        (True, False)
    """
    t = t.detach()
    if bool(t.sum().isfinite()):
        return True
    return all(bool(part.isfinite().all()) for part in t.reshape(-1).split(PART))


def digest(document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return a fingerprint of a document and tensors.

    Examples:
        >>> one = digest({"a": 1}, {"t": torch.zeros(2)})
        >>> one == digest({"a": 1}, {"t": torch.zeros(2)}), one == digest({"a": 1}, {"t": torch.ones(2)})
        (True, False)
    """
    hashed = hashlib.blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=16)
    for name, t in sorted(tensors.items()):
        hashed.update(json.dumps([name, str(t.dtype), list(t.shape)]).encode())
        if t.numel():
            hashed.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hashed.hexdigest()
