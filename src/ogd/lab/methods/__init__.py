"""How each method differs from SGD, one small file each, and all that it takes to write your own."""

from ogd.lab.benchmarks.batches import Batch
from ogd.lab.catalogue import Look, Option
from ogd.lab.catalogue import register_method as register
from ogd.lab.methods.agem import AGEM
from ogd.lab.methods.buffer import Buffer
from ogd.lab.methods.constraint import Constraint
from ogd.lab.methods.der import DER
from ogd.lab.methods.er import ER
from ogd.lab.methods.ewc import EWC
from ogd.lab.methods.finished import Finished
from ogd.lab.methods.gpm import GPM
from ogd.lab.methods.method import Method
from ogd.lab.methods.mtl import MTL
from ogd.lab.methods.ogd import OGD
from ogd.lab.methods.sgd import SGD

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
    "Finished",
    "Look",
    "Method",
    "Option",
    "register",
]
