"""What the laboratory needs beyond the library: the packages of `pip install 'ogd[lab]'`."""

from importlib.util import find_spec

PACKAGES = ("jinja2", "matplotlib", "rich")


def missing() -> str:
    """Say which packages of the laboratory are not installed, and how to install them, or return nothing."""
    absent = [name for name in PACKAGES if find_spec(name) is None]
    if not absent:
        return ""
    return f"the laboratory needs {' and '.join(absent)}, not installed here: pip install 'ogd[lab]'"
