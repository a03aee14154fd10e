"""Redraw the documents' tables: between `<!-- ogd … -->` and `<!-- end -->` stands that command's output."""

import contextlib
import io
import re
import sys
from pathlib import Path

from ogd import cli

MARKED = re.compile(r"<!-- (ogd [^>]*?) -->\n.*?<!-- end -->", re.DOTALL)


def redraw(text: str) -> str:
    """Return a document with every marked command run again."""

    def output(match: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            cli.main(match[1].split()[1:])
        return f"<!-- {match[1]} -->\n{printed.getvalue().strip()}\n<!-- end -->"

    return MARKED.sub(output, text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(redraw(path.read_text(encoding="utf-8")), encoding="utf-8")
