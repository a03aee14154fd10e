"""Files → arrays: the MNIST inside the package, or any folder of IDX files."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ogd.checks import ArgumentError, check_name
from ogd.lab.data import fashion, idx

VARIABLE = "OGD_DATA"
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
MNIST = Path(__file__).parent / "mnist"
MNIST_SHA256 = {
    "train-images-idx3-ubyte.gz": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte.gz": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte.gz": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte.gz": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}

# data sets with the digests of their four files: these have the same name in any folder
KNOWN: dict[str, Mapping[str, str]] = {"mnist": MNIST_SHA256, "fashion": fashion.FILES}

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled images: `train_images` (n, height, width) and `train_labels` (n,), and the same for the test.

    Colour images are (n, channels, height, width).
    """

    name: str
    sha256: str  # of the four decompressed files' digests; tells data sets apart
    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dataset) and other.sha256 == self.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __reduce__(self) -> tuple[Any, ...]:
        """Send MNIST, which every worker has, by name; a data set in files by its folder; any other as a whole."""
        if (self.name, self.sha256) == ("mnist", _digest(MNIST_SHA256.values())):
            return _mnist, ()
        if isinstance(self.train_images, np.memmap):
            return _opened, (self.name, self.sha256, os.fspath(Path(str(self.train_images.filename)).parent))
        return Dataset, tuple(getattr(self, field.name) for field in fields(self))

    @property
    def classes(self) -> tuple[int, ...]:
        return tuple(int(label) for label in np.unique(self.train_labels))


class Outline(Dataset):
    """A data set of which only the name, the digest, the shapes and the labels' counts are there, and no pixels.

    This is enough to find its records, and not enough to train.
    """

    def missing(self) -> ArgumentError:
        """Return the error that says how to get the images."""
        folder = f"data/{self.name}"
        return ArgumentError(
            "data",
            f"some of these runs train on the data set {self.name}: `ogd data {self.name} --out {folder}` "
            f"writes it, and --data {folder} reads it",
        )


def load(source: str | os.PathLike[str] | None = None) -> Dataset:
    """Load a data set: `"mnist"`, or a folder of IDX files, gzipped or not.

    `None` means the folder named by the environment variable `OGD_DATA`, or MNIST where there is none.

    Examples:
        >>> mnist = load()
        >>> mnist.train_images.shape, mnist.test_images.shape, len(mnist.classes)
        ((60000, 28, 28), (10000, 28, 28), 10)
    """
    chosen = os.fspath(source if source is not None else os.environ.get(VARIABLE, "mnist"))
    if chosen == "mnist":
        return _mnist()
    folder = Path(chosen).expanduser()
    if not chosen or not folder.is_dir():
        raise ArgumentError("data", f"there is no folder {chosen!r}; give one that holds IDX files, or 'mnist'")
    name = os.fsencode(folder.resolve().name).decode(errors="backslashreplace")  # bytes that are no letters
    return _read_folder(name, folder, {})


@cache
def outline(name: str) -> Dataset:
    """Return a known data set without its images, unless these are in the package.

    Examples:
        >>> outline("fashion").train_images.shape, len(outline("fashion").classes)
        ((60000, 28, 28), 10)
    """
    check_name("data", name, KNOWN)
    if name == "mnist":
        return _mnist()
    parts = []
    for n in (60_000, 10_000):
        parts += [np.broadcast_to(np.uint8(0), (n, 28, 28)), (np.arange(n) % 10).astype(np.uint8)]
    return Outline(name, _digest(KNOWN[name].values()), *parts)


def validation(dataset: Dataset, fraction: float = 1 / 6) -> Dataset:
    """Return a data set whose test examples are a part of the training examples, held out by chance.

    What is tuned is tuned on this; the real test examples take no part in it.

    Examples:
        >>> held_out = validation(load())
        >>> len(held_out.train_labels), len(held_out.test_labels)
        (50000, 10000)
    """
    n = len(dataset.train_labels)
    order = np.random.default_rng(0).permutation(n)
    test, train = np.sort(order[: round(n * fraction)]), np.sort(order[round(n * fraction) :])
    return Dataset(
        f"{dataset.name} (validation)",
        hashlib.sha256(f"{dataset.sha256} validation {fraction}".encode()).hexdigest(),
        dataset.train_images[train],
        dataset.train_labels[train],
        dataset.train_images[test],
        dataset.train_labels[test],
    )


def mapped(dataset: Dataset, folder: Path) -> Dataset:
    """The data set in files in a folder: processes of this machine that are given it read those."""
    if (dataset.name, dataset.sha256) == ("mnist", _digest(MNIST_SHA256.values())):
        return dataset
    for part in ARRAYS:
        np.save(folder / f"{part}.npy", getattr(dataset, part), allow_pickle=False)
    return _opened(dataset.name, dataset.sha256, os.fspath(folder))


def _opened(name: str, sha256: str, folder: str) -> Dataset:
    arrays = [np.load(Path(folder) / f"{part}.npy", mmap_mode="r", allow_pickle=False) for part in ARRAYS]
    return Dataset(name, sha256, *arrays)


@cache
def _mnist() -> Dataset:
    return _read_folder("mnist", MNIST, MNIST_SHA256)


def _digest(digests: Iterable[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _read_folder(name: str, folder: Path, checksums: dict[str, str]) -> Dataset:
    arrays, digests = [], []
    for part, content, ranks in [
        ("train", "images", (3, 4)),
        ("train", "labels", (1,)),
        ("t10k", "images", (3, 4)),
        ("t10k", "labels", (1,)),
    ]:
        path = _find(folder, part, content)
        raw = idx.read(path)
        digests.append(hashlib.sha256(raw).hexdigest())
        if checksums and digests[-1] != checksums[path.name]:
            raise ArgumentError("data", f"{path} is damaged: its SHA-256 is not MNIST's; install the package again")
        arrays.append(idx.parse(raw, path, *ranks))
    names = {_digest(known.values()): name for name, known in KNOWN.items()}
    sha256 = _digest(digests)
    dataset = Dataset(names.get(sha256, name), sha256, *arrays)
    _check(dataset, folder)
    return dataset


def _find(folder: Path, part: str, content: str) -> Path:
    """Find one of the four files under the spellings in use: `train-images-idx3-ubyte`, `test-…`, `.idx`, `.gz`."""
    parts = (part, "test") if part == "t10k" else (part,)
    found = sorted(path for p in parts for path in folder.glob(f"*{p}-{content}[-.]idx*"))
    if not found:
        raise ArgumentError("data", f"{folder} has no {part}-{content}-idx{3 if content == 'images' else 1}-ubyte[.gz]")
    plain = [path for path in found if path.suffix != ".gz"]
    if len(found) - len(plain) > 1 or len(plain) > 1:
        raise ArgumentError("data", f"{folder} has several {part} {content}: {', '.join(path.name for path in found)}")
    return (plain or found)[0]


def _check(dataset: Dataset, folder: Path) -> None:
    for part in ("train", "test"):
        images, labels = getattr(dataset, f"{part}_images"), getattr(dataset, f"{part}_labels")
        if len(images) != len(labels):
            raise ArgumentError("data", f"{folder} has {len(images):,} {part} images but {len(labels):,} labels")
        if images.size == 0:
            raise ArgumentError("data", f"{folder} has no {part} examples, or images without pixels: {images.shape}")
    train, test = dataset.train_images.shape[1:], dataset.test_images.shape[1:]
    if train != test:
        raise ArgumentError("data", f"{folder} has train images of shape {train} but test images of shape {test}")
    unknown = set(np.unique(dataset.test_labels).tolist()) - set(dataset.classes)
    if unknown:
        raise ArgumentError("data", f"{folder} has test labels that no training example has: {sorted(unknown)}")
