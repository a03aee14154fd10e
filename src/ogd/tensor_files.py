"""Files of tensors: safetensors, with a JSON document in the metadata and a digest of everything.

A file that was altered by anything, a disk or a person, does not match its digest and is refused.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ogd import json_files
from ogd.files import replacing

DIGEST = "digest"  # the document's own key for it


def write(path: Path, key: str, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a document under `key` and tensors; a reader of the path sees the old file or the new one, whole."""
    tensors = {name: t.detach().contiguous().cpu() for name, t in tensors.items()}
    whole = {**document, DIGEST: digest(document, tensors)}
    with replacing(path) as temporary:
        try:
            # one key of metadata: with two, the same content would not give the same file twice
            save_file(tensors, temporary, {key: json.dumps(whole)})
        except SafetensorError as error:  # how it tells of a full disk
            raise OSError(f"it could not be written ({error})") from error


def read(path: Path, key: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The document and the tensors of a file, or a ValueError that says what is wrong with it.

    `document["digest"]` is None in files of older versions, which have none.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise
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
    said = document.pop(DIGEST, None)
    if said is not None and said != digest(document, tensors):
        raise ValueError("its content does not match its digest: it was damaged or altered after it was written")
    return {**document, DIGEST: said}, tensors


def digest(document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """A fingerprint of a document and tensors.

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
