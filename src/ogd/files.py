"""Write files atomically, through a temporary file that is renamed; make temporary folders."""

import os
import platform
import re
import secrets
import shutil
import stat
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ogd.checks import ArgumentError

DAY = 24 * 60 * 60.0
SPECIAL = "a pipe, a socket or a device, not a file"  # the description of what `is_special` finds
MACHINE = f"{zlib.crc32(platform.node().encode()):08x}"  # tells process numbers of machines that share a disk apart


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8 and with unchanged newlines."""
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        around = text[max(error.start - 20, 0) : error.end]
        raise ValueError(f"{path} cannot be written: {around!r} is not Unicode") from error
    write_bytes(path, content)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically; make its folder if there is none."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; after the block, flush that file to the disk and rename it to `path`.

    The folder is made if there is none. If the block fails, `path` does not change and the temporary file is removed.
    If `path` is a link, its target is replaced, as `open` would do.
    """
    if is_special(path):
        raise OSError(f"{path}: {SPECIAL}; give the path of a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{MACHINE}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno is None:
            raise OSError(f"{path}: {error}") from error
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def is_special(path: Path) -> bool:
    """Return whether a path is neither a file nor a folder: reading may never end, and writing would replace it."""
    try:
        mode = path.stat().st_mode
    except OSError:  # opening the path raises the same error
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Let one process at a time into the block; if it is killed, the system lets the next one in."""
    import fcntl  # Windows has none

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def check_writable(folders: Iterable[Path], argument: str = "out") -> None:
    """Make the folders, or raise a ValueError that names the argument if one cannot be written to."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(1 << 16))  # finds a full disk
        except OSError as error:
            raise ArgumentError(argument, f"cannot write to {folder}: {error.strerror or error}") from error


def sweep(folder: Path) -> None:
    """Remove temporary files of killed processes from a folder; wait a day with files of another machine."""
    for path in folder.glob(".*"):
        named = re.fullmatch(r"\..+\.([0-9a-f]{8})\.(\d+)\.[0-9a-f]{8}", path.name)
        if named and (_old(path) if named[1] != MACHINE else not is_alive(int(named[2]))):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder for the block that only this user can read; first remove folders of killed processes."""
    sweep_temporary_folders()
    with tempfile.TemporaryDirectory(prefix=f"ogd-{MACHINE}-{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def sweep_temporary_folders() -> None:
    """Remove the temporary folders of processes that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"ogd-{MACHINE}-*"):
        named = re.fullmatch(rf"ogd-{MACHINE}-(\d+)-\w+", path.name)
        if named and path.is_dir() and not path.is_symlink() and not is_alive(int(named[1])):
            shutil.rmtree(path, ignore_errors=True)


def _old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > DAY
    except FileNotFoundError:
        return False


def is_alive(process: int) -> bool:
    """Return whether a process of this machine exists."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # a process of another user
        return True
    return True
