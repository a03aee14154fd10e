"""The defaults behind a call that a table names, so that a number is measured again when they change."""

import inspect
from typing import Any

# The paper's projection, where the defaults of a GradientMemory are others (its softness is 0, too).
PAPER = {"per_task": 200}, {"every": 1}  # options of the memory, and of its `protect`


def of(memory: type[Any], way: str = "") -> dict[str, str]:
    """Return the defaults of a memory's constructor, `protect` and `remember`; with the paper's values for its way."""
    calls = {"": memory, "protect": memory.protect, "remember": memory.remember}
    found = {
        f"{call}({name})": repr(parameter.default)
        for call, function in calls.items()
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    if way == "paper":
        made, protected = PAPER
        found |= {f"({name})": repr(value) for name, value in made.items()}
        found |= {f"protect({name})": repr(value) for name, value in protected.items()}
    return found
