import gzip
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ogd.lab import catalogue, data
from ogd.lab.experiments import EXPERIMENTS

torch.set_num_threads(1)
os.environ.pop("OGD_DATA", None)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture(autouse=True)
def _registries() -> Iterator[None]:
    """Forget after a test what it registered."""
    before = [(registry, dict(registry)) for registry in (catalogue.METHODS, catalogue.BENCHMARKS, EXPERIMENTS)]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)


@pytest.fixture(scope="session")
def mnist() -> data.Dataset:
    return data.load("mnist")


def write_tiny(
    folder: Path,
    n: int = 60,
    m: int = 30,
    shape: tuple[int, int] = (6, 5),
    classes: int = 10,
    compress: bool = False,
) -> Path:
    """Write a folder of IDX files: n training and m test images of a shape, with labels 0 … classes−1 in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for part, count in [("train", n), ("t10k", m)]:
        labels = np.arange(count) % classes
        images = rng.integers(0, 100, (count, *shape)) + 10 * labels[:, None, None]
        for name, array in [("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)]:
            content = idx(array)
            path = folder / f"{part}-{name}{'.gz' if compress else ''}"
            path.write_bytes(gzip.compress(content) if compress else content)
    return folder


@pytest.fixture(scope="session")
def write_idx() -> Callable[..., Path]:
    return write_tiny


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory, write_idx: Callable[..., Path]) -> Path:
    return write_idx(tmp_path_factory.mktemp("data") / "tiny")


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory, write_idx: Callable[..., Path]) -> Path:
    return write_idx(tmp_path_factory.mktemp("data") / "small", n=1200)


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> data.Dataset:
    return data.load(tiny_folder)
