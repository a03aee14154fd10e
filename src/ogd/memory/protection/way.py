"""How a memory protects: what was asked for, checked, and what is taken where nothing was."""

import sys
from dataclasses import dataclass
from typing import Any, Literal

from ogd.checks import is_whole

Keep = Literal["gradients", "examples"]
WAYS = {"gradients": ("projection",), "examples": ("rehearsal", "projection")}  # the first is the default
OWN = {"rehearsal": ("batch", "alpha", "labels"), "projection": ("refresh",)}  # options of one way alone
EVERY, BATCH, ALPHA = 2, 32, 0.5  # of rehearsal: chosen on validation data (docs/rehearsal.md)
REFRESH = 200


@dataclass(frozen=True)
class Way:
    """`by` with its options."""

    by: str
    every: int | Literal["auto"]
    batch: int = BATCH
    alpha: float = ALPHA
    labels: bool = True
    refresh: int = REFRESH

    @classmethod
    def chosen(cls, keep: Keep, by: object, every: Any, **given: Any) -> "Way":
        """The way for what was asked for.

        Examples:
            >>> Way.chosen("gradients", None, None).every, Way.chosen("examples", None, None, batch=16).by
            (1, 'rehearsal')
        """
        by = WAYS[keep][0] if by is None else by
        if by not in list(OWN):
            raise ValueError(f'by must be "projection" or "rehearsal", not {by!r}')
        if by not in WAYS[keep]:
            raise ValueError('by="rehearsal" needs the examples: make the memory with keep="examples"')
        asked = {name: value for name, value in given.items() if value is not None}
        _check_belongs(keep, str(by), asked)
        every = every if every is not None else EVERY if by == "rehearsal" else 1
        if not is_whole(every, 1) and not (every == "auto" and by == "projection"):
            auto = ', or "auto"' if by == "projection" else ""
            raise ValueError(f"every must be a whole number of steps, 1 or more{auto}, not {every!r}")
        for name in ("batch", "refresh"):
            if name in asked and not is_whole(asked[name], 1):
                raise ValueError(f"{name} must be a whole number, 1 or more, not {asked[name]!r}")
        _check_weights(asked)
        return cls(str(by), every, **asked)


def _check_belongs(keep: Keep, by: str, asked: dict[str, Any]) -> None:
    for other, names in OWN.items():
        strange = [name for name in names if name in asked and other != by]
        if strange:
            raise ValueError(f'{strange[0]}= is an option of by="{other}", and this protects by="{by}"')
    if keep == "gradients" and "refresh" in asked:
        raise ValueError('refresh= needs the examples: make the memory with keep="examples"')


def _check_weights(asked: dict[str, Any]) -> None:
    alpha = asked.get("alpha", ALPHA)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 <= alpha <= sys.float_info.max:
        raise ValueError(f"alpha must be a number, 0 or more, not {alpha!r}")
    if not isinstance(asked.get("labels", True), bool):
        raise ValueError(f"labels must be True or False, not {asked['labels']!r}")
    if alpha == 0 and not asked.get("labels", True):
        raise ValueError("alpha=0 with labels=False rehearses nothing")
