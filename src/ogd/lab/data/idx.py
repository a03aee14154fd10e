"""IDX, the format of MNIST: a big-endian header (0, 0, type, rank, one size per axis), then the values."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ogd.checks import ArgumentError
from ogd.files import SPECIAL, is_special

UNSIGNED_BYTE = 0x08
MOST = 2**32  # bytes: four times the largest data set in use, 60,000 images of 128 × 128
LARGE, RATIO = 2**28, 100  # bytes beyond which a file may not decompress to more than 100 times its own


def read(path: Path) -> bytes:
    """Return the bytes of a file, decompressed when its name ends in `.gz`: as many as its header promises, no more.

    A small file may decompress to more than fits the memory, so the header is read first, and a few bytes beyond
    what it promises, by which a file that is too long is known.
    """
    if is_special(path):
        raise ArgumentError("data", f"{path} cannot be read: it is {SPECIAL}")
    try:
        zipped, size = path.suffix == ".gz", path.stat().st_size
        most = min(MOST, max(LARGE, RATIO * size)) if zipped else MOST
        with gzip.open(path) if zipped else path.open("rb") as file:
            header = file.read(4)
            sizes = file.read(4 * header[3]) if len(header) == 4 else b""
            promised = math.prod(struct.unpack(f">{len(sizes) // 4}I", sizes[: len(sizes) // 4 * 4]))
            if promised > most:
                raise ArgumentError("data", f"{path} promises more than {most:,} bytes, the most that ogd reads")
            file.seek(0)
            whole = len(header) + len(sizes) + promised
            return file.read((whole if zipped else min(whole, size)) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ArgumentError("data", f"{path} cannot be read: {error}") from error


def parse(content: bytes, path: Path, *ranks: int) -> npt.NDArray[np.uint8]:
    """Return the array in `content`; `path` is for the messages, `ranks` the numbers of axes it may have."""
    if len(content) < 4:
        raise ArgumentError("data", f"{path} is not an IDX file: it has {len(content)} bytes, too few for a header")
    zeros, kind, axes = struct.unpack(">HBB", content[:4])
    if zeros != 0 or kind != UNSIGNED_BYTE:
        raise ArgumentError(
            "data", f"{path} has the magic number 0x{content[:4].hex()}; unsigned bytes in IDX start with 0x000008"
        )
    if ranks and axes not in ranks:
        raise ArgumentError("data", f"{path} holds an array of {axes} axes instead of {' or '.join(map(str, ranks))}")
    start = 4 + 4 * axes
    if len(content) < start:
        raise ArgumentError("data", f"{path} is truncated: it ends inside its header")
    shape = struct.unpack(f">{axes}I", content[4:start])
    expected, found = math.prod(shape), len(content) - start
    if found != expected:
        problem, has = ("is truncated", f"{found:,}") if found < expected else ("is too long", "more")
        raise ArgumentError("data", f"{path} {problem}: its header promises {expected:,} bytes, it has {has}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def to_bytes(array: npt.NDArray[np.uint8]) -> bytes:
    """Return the IDX file of an array of bytes.

    Examples:
        >>> parse(to_bytes(np.array([[1, 2]], np.uint8)), Path("two"), 2)
        array([[1, 2]], dtype=uint8)
    """
    header = struct.pack(f">HBB{array.ndim}I", 0, UNSIGNED_BYTE, array.ndim, *array.shape)
    return header + np.ascontiguousarray(array, np.uint8).tobytes()
