"""Fashion-MNIST from Debian's package `dataset-fashion-mnist`: gzipped IDX files in a tar file in an `ar` archive."""

import gzip
import io
import lzma
import os
import re
import tarfile
import zlib
from pathlib import Path
from typing import BinaryIO

FILES = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
FOLDER = "./usr/share/datasets/fashion-mnist"
MAGIC = b"!<arch>\n"
HEADER = re.compile(rb"(?s)(?P<name>.{16}).{32}(?P<size>\d+) *`\n")  # 60 bytes
MOST = 2**26  # bytes of a file: the largest has 47,040,016


def unpack(archive: Path) -> dict[str, bytes]:
    """Return the four IDX files in a Debian package of any version.

    The digest of the package is not known, so any file may come here: nothing is trusted, and nothing is executed.

    Raises:
        ValueError: The package cannot be read, or lacks one of the files.
    """
    try:
        with archive.open("rb") as package:
            data = io.BytesIO(member(package, b"data.tar"))
        with tarfile.open(fileobj=data) as tar:
            return {file: decompressed(tar, f"{FOLDER}/{file}.gz") for file in FILES}
    except (ValueError, KeyError, EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise ValueError(f"{archive.name} is not a Debian package that holds Fashion-MNIST") from error


def member(package: BinaryIO, prefix: bytes) -> bytes:
    """Return the first member of an `ar` archive whose name starts with `prefix`."""
    if package.read(len(MAGIC)) != MAGIC:
        raise ValueError("not an ar archive")
    while header := HEADER.fullmatch(package.read(60)):
        size = int(header["size"])
        if header["name"].startswith(prefix):
            return package.read(size)
        package.seek(size + size % 2, os.SEEK_CUR)  # members start at even places
    raise ValueError(f"no member {prefix!r}")


def decompressed(tar: tarfile.TarFile, name: str) -> bytes:
    """Return the content of a gzipped file in a tar archive, or its first `MOST` bytes."""
    info = tar.getmember(name)
    file = tar.extractfile(info) if info.isfile() else None  # a link could point to itself
    if file is None:
        raise ValueError(f"{name} is not a file")
    with gzip.open(file) as content:
        return content.read(MOST)
