"""SGD: the tasks one after the other, and nothing done against forgetting."""

from ogd.lab.methods.method import Method


class SGD(Method):
    """The untouched base: a lower bound.

    Examples:
        >>> SGD().name
        'sgd'
    """

    name = "sgd"
