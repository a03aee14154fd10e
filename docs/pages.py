"""What all pages share: the version and the source's address, and tables of sentences, whose cells may wrap.

The cells of other tables stay on one line (assets/extra.css).
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from ogd import __version__

PROJECT = Path(__file__).parents[1] / "pyproject.toml"

TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
CELL = re.compile(r"<td[^>]*>(.*?)</td>", re.DOTALL)
LONG = 30  # characters: longer than any number with its ± and its range


def on_config(config: Any) -> Any:
    """Show the version in the footer and the source in the header; MkDocs calls this once."""
    urls = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["urls"]
    config["copyright"] = f"ogd {__version__}"
    config["site_url"] = urls["Documentation"]
    config["repo_url"], config["repo_name"] = urls["Source"], f"source, {__version__}"
    return config


def on_post_page(html: str, **_: object) -> str:
    """Keep the header from asking GitHub for stars; MkDocs calls this for every page."""
    return html.replace(' data-md-component="source"', "")


def on_page_content(html: str, **_: object) -> str:
    """Mark the tables of a page; MkDocs calls this for every page."""
    return TABLE.sub(lambda match: mark(match[0]), html)


def mark(table: str) -> str:
    """Return a table, with the attribute `data-prose` if a cell between the first and the last is long.

    Examples:
        >>> mark("<table><tr><td>a</td><td>one</td><td>b</td></tr></table>")[:7]
        '<table>'
        >>> mark("<table><tr><td>a</td><td>This cell holds more words than a number.</td><td>b</td></tr></table>")[:18]
        '<table data-prose>'
    """
    rows = (CELL.findall(row)[1:-1] for row in table.split("</tr>"))
    long = any(len(re.sub(r"<[^>]+>", "", cell)) > LONG for row in rows for cell in row)
    return table.replace("<table>", "<table data-prose>", 1) if long else table
