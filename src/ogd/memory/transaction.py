"""Change several objects completely or not at all."""

from types import TracebackType


class Transaction:
    """Restores the attributes of objects if the block raises.

    Only attributes are restored: inside the block, replace a list or a dictionary instead of changing it.

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
