"""Changes to files: bytes that a disk or a copy may spoil, and JSON values that somebody may write."""

import copy
import json
import random
from typing import Any

HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 0.5, -0.0, 1e308, 5e-324, 2**31, 2**63 - 1, 2**63, -(2**63), 10**400,
    float("nan"), float("inf"), -float("inf"), "", "a", "[/b]", "\x1b[2J", "\x00", "\ud800", "\udc80", "a" * 20_000,
    "../../x", "float32", "1", "1e3", [], [1], [None], [[]], {}, {"a": 1}, {"": {}}, [0] * 1000,
]  # fmt: skip
SPLICES = [b"\x00" * 64, b"\xff" * 64, b"NaN", b"1e999", b"9" * 400, b"\\ud800", b"[" * 50_000, b'{"a":' * 2_000, b"//"]


def spoiled(content: bytes, rng: random.Random) -> bytes:
    """Bytes after one to three accidents: flipped, lost, doubled, moved, overwritten, cut off."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        content = rng.choice((_flipped, _flipped, _flipped, _cut, _without, _doubled, _spliced, _swapped))(content, rng)
    return content


def altered(value: Any, rng: random.Random) -> bytes:
    """A JSON text of a value that was changed in one to three places, by somebody who knows how it is built."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        value = changed(value, rng)
    text = json.dumps(value)
    if rng.random() < 0.05:  # what no Python value can hold: a field twice
        text = text.replace('{"', '{"schema": 1, "', 1) if rng.random() < 0.5 else f'{{"a": 1, "a": {text}}}'
    return text.encode()


def changed(value: Any, rng: random.Random) -> Any:
    """The value with one part changed; a container is changed in place."""
    where = rng.choice(list(_places(value)) or [None])
    if where is None or rng.random() < 0.01:
        return rng.choice(HOSTILE)
    parent, key = where
    rng.choice((_replace, _replace, _replace, _nudge, _nudge, _remove, _add, _exchange, _bury))(parent, key, value, rng)
    return value


def _places(value: Any) -> Any:
    """Every (container, key) inside a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(inside):
        yield value, key
        yield from _places(item)


def _replace(parent: Any, key: Any, _: Any, rng: random.Random) -> None:
    parent[key] = copy.deepcopy(rng.choice(HOSTILE))


def _nudge(parent: Any, key: Any, _: Any, rng: random.Random) -> None:
    """Something near what was there: of the same type, or nearly."""
    old = parent[key]
    if isinstance(old, bool) or old is None:
        parent[key] = rng.choice((not old, int(bool(old)), str(old)))
    elif isinstance(old, int | float):
        parent[key] = rng.choice((old + 1, old - 1, -old, f"{old}", old * 10**6, [old]))
    elif isinstance(old, str):
        at = rng.randrange(len(old) + 1)
        parent[key] = rng.choice((old[:at], old[:at] + rng.choice("a0.-\n\u202e😀") + old[at:], [old], old.upper()))
    elif isinstance(old, list | tuple):
        old = list(old)
        parent[key] = rng.choice((old[:-1], old + old[-1:], old[::-1], dict.fromkeys(map(str, old), 1), old[:1]))
    else:
        parent[key] = rng.choice((list(old.values()), [old], dict(list(old.items())[:-1]), {**old, "a": 1}))


def _remove(parent: Any, key: Any, _: Any, __: random.Random) -> None:
    del parent[key]


def _add(parent: Any, key: Any, _: Any, rng: random.Random) -> None:
    new = copy.deepcopy(rng.choice(HOSTILE))
    if isinstance(parent, list):
        parent.insert(key, new)
    else:
        parent[rng.choice(("a", "", "schema", "\ud800", str(key).upper(), "x" * 3_000))] = new


def _exchange(parent: Any, key: Any, whole: Any, rng: random.Random) -> None:
    """Put a copy of another part here."""
    other, there = rng.choice(list(_places(whole)))
    parent[key] = copy.deepcopy(other[there])


def _bury(parent: Any, key: Any, _: Any, rng: random.Random) -> None:
    item = parent[key]
    for _ in range(rng.choice((1, 5, 31, 40, 300))):
        item = [item] if rng.random() < 0.5 else {"a": item}
    parent[key] = item


def _flipped(content: bytes, rng: random.Random) -> bytes:
    made = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8)) if made else 0):
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _without(content: bytes, rng: random.Random) -> bytes:
    a, b = _span(content, rng)
    return content[:a] + content[b:]


def _doubled(content: bytes, rng: random.Random) -> bytes:
    a, b = _span(content, rng)
    return content[:b] + content[a:]


def _spliced(content: bytes, rng: random.Random) -> bytes:
    a, b = _span(content, rng)
    return content[:a] + rng.choice(SPLICES) + content[rng.choice((a, b)) :]


def _swapped(content: bytes, rng: random.Random) -> bytes:
    a, b = _span(content, rng)
    return content[:a] + content[b:] + content[a:b]


def _span(content: bytes, rng: random.Random) -> tuple[int, int]:
    a = rng.randrange(len(content) + 1)
    return a, min(len(content), a + rng.choice((1, 2, 4, 8, 64, 1000)))
