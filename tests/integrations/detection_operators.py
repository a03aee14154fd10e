"""What torchvision's detectors call, in Python, for a machine whose torchvision cannot load its operators."""

import torch
from torch import Tensor

import torchvision_operators


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Return the boxes of which no better one covers more than `threshold`, the best first."""
    from torchvision.ops import box_iou

    overlap, order, kept = box_iou(boxes, boxes), scores.argsort(descending=True).tolist(), list[int]()
    for i in order:
        if not any(float(overlap[i, j]) > threshold for j in kept):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.long)


def use_python() -> None:
    """Let torchvision call these functions, if its own operators are missing."""
    if torchvision_operators.OPERATORS is None:
        return
    import sys

    import torchvision.ops.boxes

    torchvision.ops.nms = torchvision.ops.boxes.nms = nms
    align = sys.modules["torchvision.ops.roi_align"]
    align._roi_align = getattr(align._roi_align, "__wrapped__", align._roi_align)  # not compiled
