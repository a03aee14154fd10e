"""Progress with time left: a bar in a terminal, plain lines elsewhere, silent under two seconds."""

import sys
import time
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from ogd.visible_text import visible

PATIENCE = 2.0  # seconds before anything is shown
INTERVAL = 10.0  # seconds between two plain lines
SOON = 0.01  # of the work: before that, the estimate of the time left is too rough


class Reporter(Protocol):
    """Receives the progress of the loop."""

    def start(self, total: int) -> None: ...

    def advance(self, done: int, note: str) -> None: ...


class Silent:
    """Shows nothing."""

    def start(self, total: int) -> None:
        pass

    def advance(self, done: int, note: str) -> None:
        pass


class Display:
    """Shows progress on standard error; `title` is what is running. Use it in a `with` statement."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.console = Console(stderr=True)
        self.bar: Progress | None = None
        self.shown: TaskID | None = None
        self.total, self.done = 0, 0
        self.began = self.last_line = time.monotonic()

    def __enter__(self) -> "Display":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def start(self, total: int) -> None:
        self.total, self.done = total, 0
        self.began = self.last_line = time.monotonic()
        if self.bar is not None and self.shown is not None:
            self.bar.reset(self.shown, total=total)

    def advance(self, done: int, note: str) -> None:
        self.show(self.done + done, note)

    def show(self, done: int, note: str) -> None:
        """Show how much of the total is done."""
        self.done = done
        now = time.monotonic()
        if now - self.began < PATIENCE:
            return
        if self.console.is_terminal:
            self._draw(note)
        elif done and now - self.last_line >= INTERVAL:
            self.last_line = now
            share = self.done / self.total
            left = f", {clock((now - self.began) * (1 - share) / share)} left" if share >= SOON else ""
            print(f"{self._message(note)}, {share:.0%}{left}", file=sys.stderr, flush=True)

    def _draw(self, note: str) -> None:
        if self.bar is None:
            whole = Column(no_wrap=True)  # what is too long for the terminal is the note, not the time left
            self.bar = Progress(
                BarColumn(bar_width=20, table_column=whole),
                TextColumn("{task.percentage:>3.0f}%", table_column=whole),
                TimeRemainingColumn(table_column=whole),
                TextColumn("left", table_column=whole),
                TextColumn(
                    "{task.description}",
                    markup=False,
                    table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
                ),
                console=self.console,
                expand=True,
                transient=True,
                refresh_per_second=4,
            )
            self.shown = self.bar.add_task(visible(self.title), total=self.total)
            self.bar.start()
        assert self.shown is not None
        self.bar.update(self.shown, completed=self.done, description=self._message(note))

    def _message(self, note: str) -> str:
        return visible(f"{self.title}: {note}" if self.title else note)


def clock(seconds: float) -> str:
    """Write a time as people say it.

    Examples:
        >>> clock(12.3), clock(59.8), clock(150), clock(5400)
        ('12 s', '1.0 min', '2.5 min', '1.5 h')
    """
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3597 else f"{seconds / 3600:.1f} h"
