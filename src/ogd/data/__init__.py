"""Files → arrays. Nothing is ever downloaded."""

from ogd.data.dataset import Dataset, load, validation

__all__ = ["Dataset", "load", "validation"]
