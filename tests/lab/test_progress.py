import io

import pytest
from rich.console import Console

from ogd.lab import progress
from ogd.lab.progress import Display


class Clock:
    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_plain_lines_have_the_time_left(clock, capsys):
    with Display("rotated sgd") as display:
        display.start(100)
        for _ in range(50):
            clock.now += 1
            display.advance(1, "task 1/2")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "rotated sgd: task 1/2, 10%, 1.5 min left"
    assert len(lines) == 5


def test_what_is_over_in_two_seconds_says_nothing(clock, capsys):
    with Display("x") as display:
        display.start(10)
        for _ in range(10):
            clock.now += 0.19
            display.advance(1, "note")
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_a_bar(clock):
    screen = io.StringIO()
    with Display("rotated sgd") as display:
        display.console = Console(file=screen, force_terminal=True, width=100)
        display.start(10)
        for _ in range(5):
            clock.now += 1
            display.advance(1, "task 1/2, epoch 1/5")
        assert display.bar is not None
        display.bar.refresh()
    assert "rotated sgd: task 1/2, epoch 1/5" in screen.getvalue()
    assert "50%" in screen.getvalue()
