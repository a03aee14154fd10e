"""Show a default that is a name of `ogd.defaults` as its value in the reference: `per_task=200`, not `PER_TASK`."""

from typing import Any

from griffe import Extension, Function

from ogd import defaults


class Defaults(Extension):
    """Replace the names of `ogd.defaults` in signatures by their values."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        """Look at each parameter of a function that griffe has read."""
        for parameter in func.parameters:
            name = str(parameter.default or "")
            if name.startswith("defaults."):
                parameter.default = repr(getattr(defaults, name.removeprefix("defaults.")))
