"""Files → arrays. Nothing is ever downloaded."""

from ogd.data.dataset import Dataset, load, mapped, validation

__all__ = ["Dataset", "load", "mapped", "validation"]
