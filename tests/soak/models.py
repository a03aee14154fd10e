"""Random models with random lives of their memories: P against a dense reference, case by case."""

import traceback
from collections.abc import Callable
from typing import Any

from random_lives import Failed, live


def attack(count: int, seed: int, found: dict[str, Any], tell: Callable[[int, str], None]) -> None:
    """Try the cases that are left of `count`; `found` is what there was before, and is brought up to date."""
    found.update({"cases": 0, "failures": []} | found)
    while found["cases"] < count:
        try:
            live(seed * count + found["cases"])
        except Failed as failed:
            if not failed.known:
                found["failures"].append("".join(traceback.format_exception_only(failed.__cause__)) + str(failed))
        found["cases"] += 1
        tell(1, f"models: {found['cases']}")
