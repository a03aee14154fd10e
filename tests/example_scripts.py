"""Run a script of examples/ on little data, and compare the tables it prints with those in its README."""

import re
import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
README = (EXAMPLES / "README.md").read_text()


def frame(text):
    """The columns and the rows of the table in a text, without its numbers."""
    head, _, *rows = re.findall(r"^\|.*\|$", text, re.MULTILINE)
    return [cell.strip() for cell in head.split("|")], [row.split("|")[1].strip() for row in rows]


def block(name):
    """What the README says that a script prints."""
    _, _, section = README.partition(f"\n## [`{name}.py`]")
    return re.search(r"```text\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)[1]


def prints_its_table(capsys, name, **small):
    """Whether a script prints a table of the form that the README shows, and every number is one."""
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](**small)
    printed = capsys.readouterr().out
    return frame(printed) == frame(block(name)) and "nan" not in printed
