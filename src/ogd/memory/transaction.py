"""A change of several objects that happens as a whole or not at all."""

from types import TracebackType


class Transaction:
    """If the block raises, the objects get back the attributes that they had before it.

    The attributes are put back, not what they hold: inside, replace a list or a dictionary, and do not change it.

    Examples:
        >>> from types import SimpleNamespace
        >>> pair = SimpleNamespace(a=1, b=1)
        >>> with Transaction(pair):
        ...     pair.a = 2
        ...     pair.b = 1 / 0
        Traceback (most recent call last):
        ZeroDivisionError: division by zero
        >>> pair
        namespace(a=1, b=1)
    """

    def __init__(self, *objects: object):
        self._before = [(vars(one), dict(vars(one))) for one in objects]

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for attributes, before in self._before:
                attributes.update(before)
