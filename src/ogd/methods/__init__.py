"""How each method differs from SGD, one small file each."""

from ogd.catalogue import Look, Option
from ogd.catalogue import register_method as register
from ogd.methods.agem import AGEM
from ogd.methods.ewc import EWC
from ogd.methods.method import Method
from ogd.methods.mtl import MTL
from ogd.methods.ogd import OGD
from ogd.methods.sgd import SGD

__all__ = ["AGEM", "EWC", "MTL", "OGD", "SGD", "Look", "Method", "Option", "register"]
