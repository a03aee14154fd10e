"""`ogd.load`: read a memory from its file."""

import os
from typing import Any

from torch import nn

from ogd.json_files import shorten
from ogd.memory import saving
from ogd.memory.data.budget import BudgetExceeded
from ogd.memory.example_memory import ExampleMemory
from ogd.memory.gradient_memory import GradientMemory
from ogd.memory.memory import Memory

KINDS: dict[str, type[Memory]] = {kind.kind: kind for kind in (ExampleMemory, GradientMemory)}


def load(path: str | os.PathLike[str], model: nn.Module, **options: Any) -> Any:
    """Return the memory in a file that `save` wrote.

    Load the model's weights first: the memory belongs to the weights that the model had when it was saved.

    Args:
        path: the file.
        model: a model with the same parameters, and with the weights of that time.
        options: options of the constructor, which replace the saved ones. Functions cannot be saved: give `logits=` and
            `outputs=` again if the memory had them.

    Returns:
        An `ExampleMemory` or a `GradientMemory`, as saved.

    Raises:
        ValueError: if the file is damaged, or belongs to another model.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> model = nn.Linear(4, 3)
        >>> path = Path(tempfile.mkdtemp()) / "memory.safetensors"
        >>> ExampleMemory(model, per_task=20).save(path)
        >>> load(path, model)
        ExampleMemory(0 examples of 0 tasks, 0 bytes; of Linear)
    """
    if isinstance(path, nn.Module):
        raise TypeError("path must be the path of a file, not a module: expected load(path, model)")
    stored = saving.read(path)
    try:
        saving.check_header(stored, *KINDS)
        kind = KINDS[stored["kind"]]
        memory = kind(model, **saving.options(stored, options))
        memory.load_state_dict(stored)
    except ValueError as error:
        exception = BudgetExceeded if isinstance(error, BudgetExceeded) else ValueError
        raise exception(f"{os.fspath(path)}: {shorten(error)}") from error
    return memory
