"""How each method differs from SGD, one small file each, and all that it takes to write your own."""

from ogd.benchmarks.batch import Batch
from ogd.catalogue import Look, Option
from ogd.catalogue import register_method as register
from ogd.methods.agem import AGEM
from ogd.methods.buffer import Buffer
from ogd.methods.constraint import Constraint
from ogd.methods.der import DER
from ogd.methods.er import ER
from ogd.methods.ewc import EWC
from ogd.methods.finished import Finished
from ogd.methods.gpm import GPM
from ogd.methods.method import Method
from ogd.methods.mtl import MTL
from ogd.methods.ogd import OGD
from ogd.methods.sgd import SGD

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
