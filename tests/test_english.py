"""Plain English: idioms that made readers stumble are not used again."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
THINGS = (
    "task|run|step|epoch|row|unit|core|batch|layer|month|parameter|class|direction|column|rank|head|label|window"
    "|command"
)
# "one head a task", "200 steps an epoch": the word is "per". A verb that ends in -s ("stores a task") is not meant, so
# only these plurals count.
COUNTED = (
    "seconds|steps|examples|bytes|runs|images|gradients|directions|heads|lines|rows|records|files|numbers|points|units"
)
OTHER = "of|in|by|with|without|where|so|as|is|for|from|to|at|and|or|than|not|if|when|after|before|about|like|leave|into"
NOUN = rf"(?!(?:{OTHER})\b)\w+"
NUMBER = r"(?:one|two|three|\d+)"
PER = re.compile(
    rf"\b(?:(?:one|two|three)|{NUMBER}(?: {NOUN}){{1,2}}|{COUNTED}) an? (?:{THINGS})\b(?! of\b|\')", re.IGNORECASE
)
PER_EACH = re.compile(rf"\ban? (?:line|panel|plot|row|column|file|head|process|colour) a (?:{THINGS})\b", re.IGNORECASE)
RIDDLES = (
    "killed, either goes on",
    "they are others",
    "says two things at once",
    "a unit is what a kill costs",
    "what a method can be told",
    "once a task,",
    "to the letter",
)


def texts():
    names = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.html", "*.yml", "Makefile"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return [ROOT / name for name in names if (ROOT / name).is_file() and ROOT / name != Path(__file__)]


def stumbles(text):
    flat = re.sub(r"\s+#?\s*", " ", text)
    found = [match[0] for pattern in (PER, PER_EACH) for match in pattern.finditer(flat)]
    return found + [riddle for riddle in RIDDLES if riddle.lower() in flat.lower()]


def test_no_idiom_makes_a_reader_stumble():
    found = {str(path.relative_to(ROOT)): stumbles(path.read_text(encoding="utf-8")) for path in texts()}
    assert not {name: those for name, those in found.items() if those}


@pytest.mark.parametrize(
    "sentence",
    [
        "one head a task",
        "One JSON record a run.",
        "200 steps an epoch",
        "12 bytes\n    a row",
        "Print a line a command",
    ],
)
def test_the_rule_finds(sentence):
    assert stumbles(sentence)


@pytest.mark.parametrize(
    "sentence",
    ["one head per task", "forget a task", "it stores a task", "each step a batch is drawn", "Draw a line per row"],
)
def test_the_rule_leaves(sentence):
    assert not stumbles(sentence)
