"""Formulas as MathML, which browsers draw by themselves: no script, no font and no request.

A fenced block of language `math` holds the small part of LaTeX that these documents use. Greek letters and operators
are written as themselves, so that the source reads well too (and GitHub renders it):

    P = I - G^⊤ K^+ G            ^ and _ with one symbol or a {group}
    \\frac{a}{b}  \\text{words}  \\sqrt{x}  \\quad
    a &= b \\\\ c &= d             rows, with & between columns
"""

import re
from html import escape

TOKEN = re.compile(r"\\\\|\\[a-zA-Z]+|\d+(?:\.\d+)?|\s+|.", re.DOTALL)
FENCE = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BIG = "Σ"
COMMANDS = {r"\frac": ("mfrac", 2), r"\sqrt": ("msqrt", 1), r"\quad": ('mspace width="2em"', 0)}  # tag, parts


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace the `math` blocks of a page; MkDocs calls this for every page."""
    return FENCE.sub(lambda match: f'<div class="formula">{mathml(match[1])}</div>', markdown)


def mathml(source: str) -> str:
    """Return a formula as MathML.

    Examples:
        >>> mathml("K^+")
        '<math display="block"><msup><mi>K</mi><mo>+</mo></msup></math>'
    """
    rows = [row.split("&") for row in source.strip().replace("\n", " ").split(r"\\")]
    if rows == [[source.strip().replace("\n", " ")]]:
        return f'<math display="block">{_row(_tokens(rows[0][0]))}</math>'
    cells = ("".join(f"<mtd>{_row(_tokens(cell))}</mtd>" for cell in row) for row in rows)
    table = "".join(f"<mtr>{cell}</mtr>" for cell in cells)
    return f'<math display="block"><mtable displaystyle="true">{table}</mtable></math>'


def _tokens(text: str) -> list[str]:
    """A formula's tokens, the last one first; words in \\text keep their spaces."""
    found = []
    for part in re.split(r"(\\text\{[^}]*\})", text):
        found += [part] if part.startswith(r"\text{") else [t for t in TOKEN.findall(part) if t.strip()]
    return found[::-1]


def _row(tokens: list[str], end: str = "") -> str:
    """Everything up to `end`, or to the end of the formula."""
    parts = []
    while tokens and tokens[-1] != end:
        parts.append(_scripted(tokens))
    if end:
        tokens.pop()
    return parts[0] if len(parts) == 1 else f"<mrow>{''.join(parts)}</mrow>"


def _scripted(tokens: list[str]) -> str:
    """One atom with what is below and above it."""
    big = tokens[-1] == BIG
    atom, scripts = _atom(tokens), {}
    while tokens and tokens[-1] in ("_", "^"):
        place = tokens.pop()
        scripts[place] = _atom(tokens)
    name = {"_": ("munder" if big else "msub"), "^": "msup", "_^": "munderover" if big else "msubsup"}
    kind = "".join(script for script in "_^" if script in scripts)
    return f"<{name[kind]}>{atom}{''.join(scripts[s] for s in kind)}</{name[kind]}>" if kind else atom


def _atom(tokens: list[str]) -> str:
    """One symbol, group or command."""
    token = tokens.pop()
    if token == "{":
        return _row(tokens, "}")
    if token.startswith(r"\text{"):
        return f"<mtext>{escape(token[6:-1]).replace(' ', '&nbsp;')}</mtext>"
    if token in COMMANDS:
        tag, parts = COMMANDS[token]
        return f"<{tag}>{''.join(_atom(tokens) for _ in range(parts))}</{tag.split()[0]}>"
    if token.startswith("\\"):
        raise ValueError(f"{token} is not known to docs/mathematics.py: write the symbol itself, or teach it there")
    tag = "mn" if token[0].isdigit() else "mi" if token.isalpha() and token != BIG else "mo"
    return f"<{tag}>{escape('−' if token == '-' else token)}</{tag}>"
