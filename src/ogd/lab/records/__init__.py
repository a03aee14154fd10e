"""What was asked, what came out, and what is derived from it. Never imports torch."""

from ogd.lab.records.folder import find, pack
from ogd.lab.records.metrics import (
    average_accuracy,
    backward_transfer,
    final_accuracy,
    forgetting,
    forward_transfer,
)
from ogd.lab.records.record import Curve, RunRecord, folder_of, read, recover, write, write_all
from ogd.lab.records.request import Request

__all__ = [
    "Curve",
    "Request",
    "RunRecord",
    "average_accuracy",
    "backward_transfer",
    "final_accuracy",
    "find",
    "folder_of",
    "forgetting",
    "forward_transfer",
    "pack",
    "read",
    "recover",
    "write",
    "write_all",
]
