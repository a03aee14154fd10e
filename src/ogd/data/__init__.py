"""Files → arrays. Nothing is ever downloaded."""

from ogd.data.dataset import Dataset, load

__all__ = ["Dataset", "load"]
