"""Files → arrays. Only `fetch` ever downloads anything."""

from ogd.lab.data.dataset import Dataset, load, mapped, validation
from ogd.lab.data.fetching import SOURCES, fetch

__all__ = ["SOURCES", "Dataset", "fetch", "load", "mapped", "validation"]
