"""Files of a user's own that register methods, benchmarks and experiments. Imports nothing else of the laboratory."""

import importlib.util
import os
import sys
import threading
import traceback
import zlib
from pathlib import Path

from ogd.checks import ArgumentError

_loaded: dict[Path, str] = {}  # file → the module's name
_lock = threading.RLock()


def load_plugin(path: str | os.PathLike[str]) -> None:
    """Import a Python file, once per process, so that what it registers can be chosen by name.

    Workers import the files that were loaded here before they begin, so what a plugin registers runs on all cores, and
    on a cluster whose machines have the file in the same place. On the command line this is `--plugin FILE.py`.
    """
    file = Path(path).expanduser().resolve()
    with _lock:
        if file in _loaded:
            return
        if not file.is_file():
            raise ArgumentError("plugin", f"there is no file {str(path)!r}; give a Python file")
        name = f"ogd_plugin_{file.stem}_{zlib.crc32(str(file).encode()):08x}"
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise ArgumentError("plugin", f"{str(path)!r} is not a Python file; its name must end in .py")
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise ArgumentError("plugin", f"{_where(error, file)}: {_in_one_line(error)}") from error
        _loaded[file] = name


def loaded() -> tuple[str, ...]:
    """Return the files that were loaded, for workers to load them as well."""
    return tuple(map(str, _loaded))


def _where(error: BaseException, file: Path) -> str:
    """Return the file and the line in it at which it failed."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f"{file}, line {error.lineno}"
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(file)]
    return f"{file}, line {lines[-1]}" if lines else str(file)


def _in_one_line(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
