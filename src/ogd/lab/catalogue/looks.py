"""The figures' one language: a colour, a marker and dashes for each method, on the page and in the documents.

Every colour can be told from white and from the dark ground (tests/lab/test_looks.py). Most are Okabe and Ito's.
"""

from dataclasses import dataclass
from typing import Any

INK, MUTED = "#1a1a1a", "#757575"  # text and reference lines: in a dark scheme these two become light
ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
BROWN, OLIVE = "#A0695C", "#85852B"


@dataclass(frozen=True)
class Look:
    """How a method is drawn: its colour, and its marker and dashes for readers who cannot tell colours apart."""

    colour: str
    marker: str = "o"
    dashes: Any = "-"  # as matplotlib has them


MTL = Look(INK, "s", (0, (1, 1)))  # a bound, as every reference line is
OGD = Look(BLUE, "o", "-")
AGEM = Look(ORANGE, "^", (0, (5, 1)))
ER = Look(SKY, "P", (0, (4, 1, 1, 1, 1, 1)))
DER = Look(PURPLE, "X", (0, (6, 1, 2, 1)))
REHEARSAL = Look(GREEN, "p", (0, (3, 1, 2, 1)))
EWC = Look(BROWN, "D", (0, (3, 1, 1, 1)))
GPM = Look(OLIVE, "x", (0, (2, 1, 1, 1)))
SGD = Look(VERMILION, "v", (0, (3, 1.5)))
UNKNOWN = Look(MUTED)
# a second setting of a method that stands next to the first
EWC_UNTUNED = Look("#C49C94", "d", (0, (1, 1.5)))
OGD_RENEWED = Look("#7F95DB", "P", (0, (1, 1)))
DER_MERGED = Look("#9B4F82", "*", (0, (4, 2)))

PALETTE = (  # for methods of a user's own
    Look("#B5477F", "p", (0, (8, 2))), Look("#3F8F8B", "h", (0, (2, 1))), Look("#A89A2E", "<", (0, (5, 1, 1, 1))),
    Look("#6A5ACD", ">", (0, (1, 2))), Look("#C65BC0", "d", (0, (7, 1, 1, 1))), Look("#5B8C2A", "*", (0, (4, 2))),
    Look("#C2A83E", "8", (0, (2, 2))), Look("#B0563F", "H", (0, (6, 2, 1, 2))),
)  # fmt: skip
