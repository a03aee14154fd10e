"""Files → arrays. Only `fetch` ever downloads anything."""

from ogd.lab.data.dataset import Dataset, Outline, load, mapped, outline, validation
from ogd.lab.data.fetching import SOURCES, fetch

__all__ = ["SOURCES", "Dataset", "Outline", "fetch", "load", "mapped", "outline", "validation"]
