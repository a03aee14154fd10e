"""Measure forgetting: one score for each old set of examples, before and after training on something new."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from ogd.memory.data import calling
from ogd.memory.data.batches import as_pair, clone_tensors, length, to_device
from ogd.memory.data.calling import Logits, ScoredModel, accepts_argument, call_model, cast_inputs, logits_of
from ogd.memory.data.labels import IGNORED, class_axis, classifies, flat_labels, without_class_axis
from ogd.memory.data.language_models import shifted, shifts_labels, with_decoder_inputs
from ogd.memory.data.sampling import Sample
from ogd.memory.model.eval_mode import isolated_eval_mode
from ogd.memory.model.parameters import first_parameter

Measure = Literal["accuracy", "loss"] | Callable[[Tensor, Any], Tensor]
BATCH = 256  # examples at a time, if the data has no batches of its own


@dataclass(frozen=True)
class Scores(Mapping[str, float]):
    """A model's score on each of several sets, with the name of the measure and the sizes of the sets."""

    scores: Mapping[str, float]
    sizes: Mapping[str, int]
    measure: str

    def __getitem__(self, name: str) -> float:
        return self.scores[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.scores)

    def __len__(self) -> int:
        return len(self.scores)

    def __str__(self) -> str:
        rows = [[name, _shown(score, self.measure), f"{self.sizes[name]:,}"] for name, score in self.items()]
        return _table([["set", self.measure, "examples"], *rows])


@dataclass(frozen=True)
class Comparison:
    """Scores in columns. `changes[column][set]` is a column's score minus the first column's."""

    columns: Mapping[str, Scores]

    @property
    def changes(self) -> dict[str, dict[str, float]]:
        (_, first), *others = self.columns.items()
        return {column: {name: s[name] - first[name] for name in first if name in s} for column, s in others}

    def __str__(self) -> str:
        (_, first), *others = self.columns.items()
        head = ["set", f"{next(iter(self.columns))}, {first.measure}"]
        for column, _ in others:
            head += [column, "change"]
        names = list(dict.fromkeys(name for scores in self.columns.values() for name in scores))
        rows = [self._row(name) for name in names]
        return _table([head, *rows])

    def _row(self, name: str) -> list[str]:
        (_, first), *others = self.columns.items()
        row = [name, _shown(first.get(name), first.measure)]
        for column, scores in others:
            change = self.changes[column].get(name)
            row += [_shown(scores.get(name), first.measure), _shown(change, first.measure, change=True)]
        return row


def forgetting(
    model: nn.Module,
    sets: Mapping[str, object],
    *,
    measure: Measure | None = None,
    logits: Logits | Mapping[str, Logits] | None = None,
) -> Scores:
    """Measure a model's score on each old set.

    Call it before and after training on something new, and `compare` the two. The model is measured in evaluation
    mode, and restored.

    Examples:
        >>> model = nn.Linear(2, 2)
        >>> _ = model.weight.data.copy_(torch.eye(2)), model.bias.data.zero_()
        >>> x, y = torch.tensor([[3.0, 1.0], [0.0, 2.0], [1.0, 2.0]]), torch.tensor([0, 1, 0])
        >>> before = forgetting(model, {"march": (x, y), "april": (x[:2], y[:2])})
        >>> print(before)
        | set   | accuracy | examples |
        | :---- | -------: | -------: |
        | march |   66.7 % |        3 |
        | april |  100.0 % |        2 |

    Args:
        model: any module.
        sets: data by name: a DataLoader, a Dataset, a pair of tensors (x, y) or a list, as for `remember`.
        measure: "accuracy"; "loss" (the model's own if it returns one, cross-entropy for integer labels, the mean
            square for others); or a function (z, y) → (B,), the score of each example. None: "accuracy" if labels
            are one integer per example, else "loss".
        logits: a function (model, x) → z, or one for each set by name; None: as in a memory.

    Returns:
        The scores by the names of the sets; printed, they are a table.

    Raises:
        TypeError: if `sets` is not a dictionary of data.
        ValueError: if a set is empty, or the measure is not defined for its labels.
    """
    if not isinstance(sets, Mapping) or not sets:
        raise TypeError(f'sets must be a dictionary such as {{"march": loader}}, not {sets!r:.60}')
    if strange := [name for name in sets if not isinstance(name, str)]:
        raise TypeError(f'sets must have names as keys, such as "march", not {strange[0]!r:.60}')
    if isinstance(logits, Mapping) and (unknown := [name for name in logits if name not in sets]):
        raise ValueError(f"logits names {unknown[0]!r:.60}, which is none of the sets {list(sets)}")
    if not (measure is None or callable(measure) or measure in ("accuracy", "loss")):
        raise ValueError(f'measure must be "accuracy", "loss", a function (z, y) → (B,) or None, not {measure!r}')
    scores: dict[str, float] = {}
    sizes: dict[str, int] = {}
    with isolated_eval_mode(model), torch.no_grad():
        for name, data in sets.items():
            own = logits.get(name) if isinstance(logits, Mapping) else logits
            measure, scores[name], sizes[name] = _score(model, name, data, measure, own)
    assert measure is not None
    return Scores(scores, sizes, measure if isinstance(measure, str) else getattr(measure, "__name__", "score"))


def compare(before: Scores, after: Scores, **others: Scores) -> Comparison:
    """Compare scores before and after, and further scores by their names.

    Args:
        before: the result of `forgetting` before training on something new.
        after: the result of `forgetting` after it.
        others: more results, as further columns.

    Returns:
        The comparison with all changes; printed, it is a table.

    Raises:
        ValueError: if the measures or the sets differ.

    Examples:
        >>> before = Scores({"march": 0.985, "april": 0.97}, {"march": 800, "april": 800}, "accuracy")
        >>> after = Scores({"march": 0.612, "april": 0.97}, {"march": 800, "april": 800}, "accuracy")
        >>> print(compare(before, after))
        | set   | before, accuracy |  after | change |
        | :---- | ---------------: | -----: | -----: |
        | march |           98.5 % | 61.2 % |  −37.3 |
        | april |           97.0 % | 97.0 % |   +0.0 |
        >>> compare(before, after).changes["after"]["april"]
        0.0
    """
    columns = {"before": before, "after": after, **others}
    for column, scores in columns.items():
        if not isinstance(scores, Scores):
            raise TypeError(f"{column} must be a result of ogd.forgetting, not {type(scores).__name__}")
        if scores.measure != before.measure:
            raise ValueError(f"{column} is measured by {scores.measure}, before by {before.measure}: give measure=")
        if missing := [name for name in before if name not in scores]:
            raise ValueError(f"{column} lacks the sets {missing}: measure the same sets before and after")
    return Comparison(columns)


def _score(
    model: nn.Module, name: str, data: object, measure: Measure | None, logits: Logits | None
) -> tuple[Measure, float, int]:
    """Return the measure, its mean over the set, and the number of examples."""
    first = first_parameter(model)
    total = weight = 0.0
    count = 0
    for batch in map(as_pair, data) if isinstance(data, DataLoader) else Sample(data, None, Generator(), BATCH):
        x, y = clone_tensors(batch if first is None else to_device(batch, first.device))
        measure = measure or ("accuracy" if _are_classes(flat_labels(y)) else "loss")
        value, n = _mean(model, x, y, measure, logits, name)
        total, weight = total + (float(value) * n if n else 0.0), weight + n
        count += len(y) if isinstance(y, Tensor) else length(x)
    if not weight:
        raise ValueError(f"sets: {name!r} is empty: there is no example to measure")
    assert measure is not None
    return measure, total / weight, count


def _mean(model: nn.Module, x: Any, y: Any, measure: Measure, logits: Logits | None, name: str) -> tuple[Tensor, int]:
    """Return the mean score of a batch, and the number of its examples or tokens."""
    named = logits is None and isinstance(x, Mapping) and isinstance(y, Tensor) and accepts_argument(model, "labels")
    if named and measure == "loss":
        result = call_model(model, cast_inputs({**x, "labels": y}, model))
        loss = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
        if isinstance(loss, Tensor):  # the model's own mean loss
            return loss, int((y != IGNORED).sum())
        z = logits_of(result)
    else:
        x = with_decoder_inputs(model, x, y)
        z = calling.scores(model, x, logits)
    each = _each(z, y, measure, name, ScoredModel(model, logits), x)
    return each.mean(), len(each)


def _are_classes(y: Any) -> bool:
    return isinstance(y, Tensor) and y.ndim == 1 and not y.is_floating_point() and y.dtype != torch.bool


def _each(z: Tensor, y: Any, measure: Measure, name: str, model: ScoredModel, x: Any) -> Tensor:
    """Return the score of each example, (B,), or of each token."""
    if callable(measure):
        each = measure(z, y)
        if not isinstance(each, Tensor) or each.shape != z.shape[:1]:
            found = tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__
            raise ValueError(f"measure must return a tensor of shape ({len(z)},) for {len(z)} examples, not {found}")
        return each.double()
    if not isinstance(y, Tensor):
        raise ValueError(f"sets: {name!r} has no labels, but {type(y).__name__}: give pairs (x, y)")
    classes = without_class_axis(z, flat_labels(y))
    if classifies(z, classes) and shifts_labels(model, x, classes, "give measure=, a function (z, y) → (B,)"):
        classes = shifted(classes)
    axis = class_axis(z, classes)
    if axis is not None:
        z = z.movedim(axis, -1)
        z, y = z[classes != IGNORED], classes[classes != IGNORED].long()
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < z.shape[1]:
            span = f"labels from {int(y.min())} to {int(y.max())}"
            raise ValueError(f"sets: {name!r} has {span}, and the model {z.shape[1]} outputs: give classes from 0 on")
        if measure == "loss":
            return F.cross_entropy(z, y, reduction="none")
        return torch.where(z.isnan().any(1), torch.nan, (z.argmax(1) == y).double())
    if measure == "loss" and y.is_floating_point() and z.numel() == y.numel():
        return (z - y.view_as(z)).square().reshape(len(z), -1).mean(1)
    raise ValueError(
        f"sets: {name!r} has labels {y.dtype} of shape {tuple(y.shape)} and outputs of shape {tuple(z.shape)}, "
        f"for which {measure} is not defined: give measure=, a function (z, y) → (B,)"
    )


def _shown(value: float | None, measure: str, *, change: bool = False) -> str:
    if value is None:
        return "–"
    text = f"{100 * value:+.1f}" if measure == "accuracy" else f"{value:+.4g}"
    if not change:
        text = text.removeprefix("+") + (" %" if measure == "accuracy" else "")
    return text.replace("-", "−") if measure == "accuracy" or "e" not in text else text


def _table(rows: list[list[str]]) -> str:
    """Return rows as a Markdown table with aligned columns; the first column holds names."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first, *rest = widths
    rule = [":" + "-" * (first - 1), *("-" * (w - 1) + ":" for w in rest)]
    head, *body = [[row[0].ljust(first), *map(str.rjust, row[1:], rest)] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *body])
