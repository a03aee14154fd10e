import gzip
import pickle
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from ogd.lab import data
from ogd.lab.data import dataset, idx


def test_mnist_is_the_original(mnist):
    assert mnist.train_images.shape == (60_000, 28, 28)
    assert np.bincount(mnist.train_labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert mnist.test_labels[:5].tolist() == [7, 2, 1, 0, 4]
    assert abs(mnist.train_images.mean() / 255 - 0.1307) < 1e-4


def test_a_damaged_mnist_is_refused(monkeypatch):
    damaged = {**dataset.MNIST_SHA256, "train-labels-idx1-ubyte.gz": "0" * 64}
    monkeypatch.setattr(dataset, "MNIST_SHA256", damaged)
    dataset._mnist.cache_clear()
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte.gz is damaged"):
        data.load("mnist")


def test_mnist_is_sent_by_name_and_other_data_as_a_whole(mnist, tiny):
    assert len(pickle.dumps(mnist)) < 200
    assert pickle.loads(pickle.dumps(mnist)) == mnist
    sent = pickle.loads(pickle.dumps(tiny))
    assert (sent, sent.name) == (tiny, tiny.name)
    assert (sent.train_images == tiny.train_images).all()
    held_out = data.validation(mnist)
    assert (pickle.loads(pickle.dumps(held_out)).train_labels == held_out.train_labels).all()


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(("shape", "classes"), [((6, 5), 10), ((1, 9), 3), ((28, 28), 26)])
def test_any_folder_of_idx_files(tmp_path, write_idx, monkeypatch, compress, shape, classes):
    write_idx(tmp_path / "own", shape=shape, classes=classes, compress=compress)
    monkeypatch.setenv("OGD_DATA", str(tmp_path / "own"))
    found = data.load()
    assert (found.name, found.train_images.shape, len(found.classes)) == ("own", (60, *shape), classes)
    assert found == data.load(tmp_path / "own")


def test_a_plain_file_goes_before_its_gzipped_twin(tmp_path, write_idx):
    write_idx(tmp_path, classes=3)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(b"never read")
    assert data.load(tmp_path).classes == (0, 1, 2)


def test_the_digest_tells_data_sets_apart(tmp_path, write_idx):
    assert data.load(write_idx(tmp_path / "a")).sha256 != data.load(write_idx(tmp_path / "b", n=61)).sha256


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def change_magic(path: Path) -> None:
    path.write_bytes(b"\0\0\x0d" + path.read_bytes()[3:])


def change_rank(path: Path) -> None:
    path.write_bytes(b"\0\0\x08\x02" + path.read_bytes()[4:])


def fewer(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[7] -= 1
    path.write_bytes(bytes(content[:-1]))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("train-images-idx3-ubyte", truncate, "train-images-idx3-ubyte is truncated: its header promises 1,800"),
        ("t10k-labels-idx1-ubyte", lengthen, "t10k-labels-idx1-ubyte is too long"),
        ("train-labels-idx1-ubyte", change_magic, "train-labels-idx1-ubyte has the magic number 0x00000d01"),
        ("train-images-idx3-ubyte", change_rank, "holds an array of 2 axes instead of 3 or 4"),
        ("t10k-images-idx3-ubyte", Path.unlink, "has no t10k-images-idx3-ubyte"),
        ("train-labels-idx1-ubyte", fewer, "has 60 train images but 59 labels"),
        ("train-labels-idx1-ubyte", lambda path: path.write_bytes(b""), "too few for a header"),
        ("train-labels-idx1-ubyte", lambda path: path.write_bytes(b"\0\0\x08\x01\0"), "ends inside its header"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path, write_idx, name, damage, message):
    damage(write_idx(tmp_path) / name)
    with pytest.raises(ValueError, match=message):
        data.load(tmp_path)


def test_a_broken_gzip_file_is_named(tmp_path, write_idx):
    write_idx(tmp_path, compress=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz cannot be read"):
        data.load(tmp_path)


def test_other_complaints(tmp_path, write_idx):
    with pytest.raises(ValueError, match="data: there is no folder"):
        data.load(tmp_path / "nowhere")
    write_idx(tmp_path)
    (tmp_path / "my-train-labels-idx1-ubyte").write_bytes(b"")
    with pytest.raises(ValueError, match="several train labels"):
        data.load(tmp_path)


def test_read_decompresses(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"abc"))
    (tmp_path / "a").write_bytes(b"abc")
    assert idx.read(tmp_path / "a.gz") == idx.read(tmp_path / "a") == b"abc"


def promising(count: int) -> bytes:
    return struct.pack(">HBB3I", 0, 8, 3, count, 1024, 1024)


@pytest.mark.parametrize("content", [bytes(4), promising(300) + bytes(10**6), b"\0\0\x08\xff" + b"\xff" * 1020])
def test_a_file_that_promises_more_than_it_can_hold_takes_no_memory(tmp_path, content):
    (tmp_path / "a.gz").write_bytes(gzip.compress(content))
    (tmp_path / "a").write_bytes(content)
    tracemalloc.start()
    for name in ("a.gz", "a"):
        with pytest.raises(ValueError, match=r"data: \S+a(\.gz)? (promises more than [\d,]+ bytes|is truncated|has)"):
            idx.parse(idx.read(tmp_path / name), tmp_path / name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * len(content) + 10**6


def test_a_file_is_held_once_while_it_is_read(tmp_path):
    (tmp_path / "a").write_bytes(promising(8) + bytes(8 * 2**20))
    tracemalloc.start()
    idx.parse(idx.read(tmp_path / "a"), tmp_path / "a")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.2 * 8 * 2**20
