"""As equal shares as can be: a total is divided among groups, and small groups leave what they cannot use."""

from collections.abc import Sequence


def equal_shares(sizes: Sequence[int], most: int, weights: Sequence[int] | None = None) -> list[int]:
    """How many each group gives so that Σ count · weight ≤ most, with count · weight as equal as can be.

    Each group gives all it has or what the level L allows, ⌊L / weight⌋, for the largest L that fits, but at least one
    if one of each fits; what is left goes to the first groups, one more each.

    Examples:
        >>> equal_shares([100, 3, 100], 50)
        [24, 3, 23]
        >>> equal_shares([10, 10], 30, weights=[4, 2])  # an example of the first group takes 4 of the 30
        [4, 7]
        >>> equal_shares([10, 10], 7, weights=[2, 5])
        [1, 1]
    """
    weights = [1] * len(sizes) if weights is None else weights
    pairs = list(zip(sizes, weights, strict=True))
    least = int(sum(weight for size, weight in pairs if size) <= most)

    def at(level: int) -> list[int]:
        return [min(size, max(level // weight, least)) for size, weight in pairs]

    def total(counts: Sequence[int]) -> int:
        return sum(count * weight for count, weight in zip(counts, weights, strict=True))

    low, high = 0, max((size * weight for size, weight in pairs), default=0)  # at(low) fits
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if total(at(level)) <= most else (low, level - 1)
    counts = at(low)
    for i, (size, weight) in enumerate(pairs):
        if counts[i] < size and total(counts) + weight <= most:
            counts[i] += 1
    return counts
