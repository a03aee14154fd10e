"""In which precision numbers are computed."""

import torch


def working(dtype: torch.dtype) -> torch.dtype:
    """The precision in which updates of a parameter are projected and rows are formed: half types in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
