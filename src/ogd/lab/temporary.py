"""Temporary folders that the next command removes if their process was killed."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ogd.files import MACHINE, is_alive


@contextmanager
def own_folder() -> Iterator[Path]:
    """A folder that only this user can read, gone after the block; those that killed processes left go first."""
    sweep()
    with tempfile.TemporaryDirectory(prefix=f"ogd-{MACHINE}-{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def sweep() -> None:
    """Remove the folders of processes that are no more."""
    for path in Path(tempfile.gettempdir()).glob(f"ogd-{MACHINE}-*"):
        named = re.fullmatch(rf"ogd-{MACHINE}-(\d+)-\w+", path.name)
        if named and path.is_dir() and not path.is_symlink() and not is_alive(int(named[1])):
            shutil.rmtree(path, ignore_errors=True)
