"""The defaults behind a call that a table names, so that a number is measured again when they change."""

import inspect
from typing import Any


def of(memory: type[Any]) -> dict[str, str]:
    """Return the defaults of a memory's constructor, `protect` and `remember`."""
    calls = {"": memory, "protect": memory.protect, "remember": memory.remember}
    return {
        f"{call}({name})": repr(parameter.default)
        for call, function in calls.items()
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
