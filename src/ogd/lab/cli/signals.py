"""SIGTERM ends a command as Ctrl-C does, and neither interrupts the import of PyTorch."""

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""

    code = 143


@contextmanager
def sigterm_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM raise `Terminated` inside the block, but not while PyTorch is imported; then restore its handler."""

    def terminated(*_: object) -> NoReturn:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, finder = signal.signal(signal.SIGTERM, terminated), TorchFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


class TorchFinder:
    """Finds PyTorch, and delays signals while it is imported.

    Its C++ runs Python meanwhile, and cannot pass on an exception: the process would abort, or the signal get lost.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, _: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == "torch" else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_undisturbed(module: ModuleType) -> None:
            with delayed_signals():
                execute(module)

        spec.loader.exec_module = execute_undisturbed  # type: ignore[method-assign]
        return spec


@contextmanager
def delayed_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM come when the block ends. A mask would not do: another thread may take the signal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    both = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(which, lambda number, _: came.append(number)) for which in both]
    try:
        yield
    finally:
        for which, handler in zip(both, before, strict=True):
            signal.signal(which, signal.SIG_DFL if handler is None else handler)
        for number in came:
            signal.raise_signal(number)


def let_ctrl_c_end_silently() -> None:
    """Let Ctrl-C end the process without a message; Python would print a traceback of its own cleaning up."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
