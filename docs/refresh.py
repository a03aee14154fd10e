"""Pack the records of results/, write their index, and redraw the documents' tables.

Between `<!-- ogd … -->` and `<!-- end -->` stands that command's output. `<!-- python
measurements/TOPIC/NAME.py --show -->` is such a command too: what that script's `show()` prints.
"""

import contextlib
import importlib.util
import io
import re
import sys
from pathlib import Path

from ogd.files import write_text
from ogd.lab import cli
from ogd.lab.reporting.index import index, pack

RESULTS = Path(__file__).parents[1] / "results"
MARKED = re.compile(r"<!-- ((?:ogd|python) [^>]*?) -->\n.*?<!-- end -->", re.DOTALL)


def redraw(text: str) -> str:
    """Return a document with every marked command run again."""

    def output(match: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            run(match[1])
        return f"<!-- {match[1]} -->\n{printed.getvalue().strip()}\n<!-- end -->"

    return MARKED.sub(output, text)


def run(command: str) -> None:
    """Run a marked command in this process."""
    program, *arguments = command.split()
    if program == "ogd":
        cli.main(arguments)
        return
    script, *options = arguments
    if options != ["--show"]:
        raise ValueError(f"{command}: a document only shows what a script has recorded; write {script} --show")
    spec = importlib.util.spec_from_file_location(Path(script).stem, script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.show()


if __name__ == "__main__":
    pack(RESULTS)
    write_text(RESULTS / "README.md", index(RESULTS))
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(redraw(path.read_text(encoding="utf-8")), encoding="utf-8")
