"""How each method differs from SGD, one small file each, and all that it takes to write your own."""

from ogd.lab.benchmarks.batches import Batch
from ogd.lab.catalogue import Look, Option
from ogd.lab.catalogue import register_method as register
from ogd.lab.methods.agem import AGEM
from ogd.lab.methods.baselines import MTL, SGD
from ogd.lab.methods.buffer import Buffer
from ogd.lab.methods.der import DER
from ogd.lab.methods.er import ER
from ogd.lab.methods.ewc import EWC
from ogd.lab.methods.finished_task import FinishedTask
from ogd.lab.methods.gpm import GPM
from ogd.lab.methods.method import Constraint, Method
from ogd.lab.methods.ogd import OGD
from ogd.lab.methods.rehearsal import Rehearsal

__all__ = [
    "AGEM",
    "DER",
    "ER",
    "EWC",
    "GPM",
    "MTL",
    "OGD",
    "SGD",
    "Batch",
    "Buffer",
    "Constraint",
    "FinishedTask",
    "Look",
    "Method",
    "Option",
    "Rehearsal",
    "register",
]
