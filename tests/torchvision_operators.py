"""PyPI's torchvision, which Avalanche needs, cannot load its operators beside a CPU build of torch, and then fails to
import because they are unknown. Import this first: it declares them, which is enough, since nothing here calls them.
"""

import importlib.util
from pathlib import Path

import torch


def declared() -> torch.library.Library | None:
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


OPERATORS = declared()
