"""For tests and doctests alike: what is not installed is not collected, and a torchvision without operators imports."""

import importlib.util

import pytest

import torchvision_operators  # noqa: F401  before a framework is imported

FRAMEWORKS = {"lightning": "lightning", "transformers": "transformers", "avalanche": "avalanche"}  # module: package

# doctests import these modules, which import their framework
collect_ignore = ["tests/integrations/small_bert.py", "tests/soak"] + [
    f"src/ogd/integrations/{module}.py" for module, needs in FRAMEWORKS.items() if not importlib.util.find_spec(needs)
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Frameworks warn of their own affairs."""
    for item in items:
        if "integrations" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("default"))
