"""Whether the documents of the project's own checkout say what its records say."""

import contextlib
import difflib
import importlib.util
import io
import re
from pathlib import Path
from typing import Any

from ogd.lab.reporting.index import index

ROOT = Path(__file__).parents[4]  # of the checkout, where this is one
SCRIPT = Path("docs", "refresh.py")  # draws the documents


def unchecked(folder: Path, root: Path = ROOT) -> str:
    """Say that there are documents next to a folder that cannot be checked, or return nothing."""
    there = folder.resolve().parent
    if there == root or not (there / SCRIPT).is_file():
        return ""
    return f"the documents in {there} were not checked: for that, run the ogd of that checkout (pip install -e)"


def stale(folder: Path, root: Path = ROOT) -> list[str]:
    """Say which documents do not show what the records hold; only of the results of the checkout that ogd runs from."""
    if folder.resolve() != root / "results" or not (root / SCRIPT).is_file():
        return []
    refresh = _imported(root / SCRIPT)
    problems = []
    if index(folder) != (folder / "README.md").read_text(encoding="utf-8"):
        problems.append(f"{folder / 'README.md'}: is not the index of these records; `make docs` draws it again")
    with contextlib.chdir(root):
        for path in (Path("README.md"), *sorted(Path("docs").glob("*.md"))):
            for block in refresh.MARKED.finditer(path.read_text(encoding="utf-8")):
                problem = _problem(block, refresh)
                if problem:
                    problems.append(f"{path}: `{block[1]}` {problem}")
    return problems


def _problem(block: re.Match[str], refresh: Any) -> str:
    """Say what is wrong with what stands below a marked command, or return nothing."""
    from ogd.lab.experiments.runner import reading_only

    said = io.StringIO()
    try:
        with reading_only(), contextlib.redirect_stderr(said):
            drawn = refresh.redraw(block[0])
    except SystemExit:
        return f"fails: {said.getvalue().strip()}"
    except (ValueError, LookupError, OSError) as error:
        return f"fails: {error}"
    if drawn == block[0]:
        return ""
    lines = list(difflib.ndiff(block[0].splitlines(), drawn.splitlines()))
    there, now = (next((line[2:] for line in lines if line[0] == sign), "nothing") for sign in "-+")
    return f"prints something else now; `make docs` draws it again. It says {there!r:.150}, the records {now!r:.150}"


def _imported(script: Path) -> Any:
    spec = importlib.util.spec_from_file_location("ogd_docs_refresh", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
