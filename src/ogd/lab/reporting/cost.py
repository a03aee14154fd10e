"""What the records cost, and with what they were made."""

from collections import Counter
from collections.abc import Iterable

from ogd.lab.records import RunRecord


def seconds(records: Iterable[RunRecord]) -> float:
    """Return the wall time of all groups: a record has that of the whole group it trained in, which counts once."""
    return sum(time for _, time, _ in {(record.request.key, record.seconds, record.lockstep) for record in records})


def environments(records: Iterable[RunRecord]) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return for every fact of the environment the values found, and in how many records, most first."""
    unique = {(record.request.key, record.run): record.environment for record in records}
    facts: dict[str, Counter[str]] = {}
    for environment in unique.values():
        for name, value in environment.items():
            facts.setdefault(name, Counter())[_short(value) if name == "commit" else value or "not known"] += 1
    return [
        (name, sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))) for name, counts in sorted(facts.items())
    ]


def _short(commit: str | None) -> str:
    """Return a commit as Git abbreviates it, with the `+` of a changed checkout."""
    return commit[:10] + "+" * commit.endswith("+") if commit else "not known"
