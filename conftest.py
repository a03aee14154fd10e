"""For tests and doctests alike: what is not installed is not collected, and a torchvision without operators imports."""

import importlib.util
from pathlib import Path

import pytest
import torch

FRAMEWORKS = {"lightning": "lightning", "transformers": "transformers", "avalanche": "avalanche"}  # module: package

# doctests import these modules, which import their framework
collect_ignore = [
    f"src/ogd/integrations/{module}.py" for module, needs in FRAMEWORKS.items() if not importlib.util.find_spec(needs)
]


def _declare_operators() -> torch.library.Library | None:
    """PyPI's torchvision, which Avalanche needs, cannot load its operators beside a CPU build of torch, and then fails
    to import because they are unknown. Declaring them is enough: nothing here calls them.
    """
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return None
    try:
        torch.ops.load_library(Path(found.origin).with_name("_C.so"))
    except OSError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None


_operators = _declare_operators()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Frameworks warn of their own affairs."""
    for item in items:
        if "integrations" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("default"))
