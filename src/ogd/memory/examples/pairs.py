"""Examples that are pairs (x, y): kept with the model's outputs, and rehearsed by these and their labels."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ogd.memory.data.batches import CHUNK_BYTES, CHUNK_SIZE, Chunk
from ogd.memory.data.calling import Logits, ScoredModel, as_inputs, scores
from ogd.memory.data.distributed_sampling import all_examples
from ogd.memory.data.sampling import Sample
from ogd.memory.examples.clustering import ClusteredSample
from ogd.memory.examples.example_kind import DrawnBatch, ExampleKind, NewTask, own_rows
from ogd.memory.examples.examples_state import examples_from_state, examples_state
from ogd.memory.examples.kept_examples import Batch, Examples, Task
from ogd.memory.examples.loss import original_outputs, reference_losses, remembered_loss, squared_change
from ogd.memory.examples.prefetch import Prefetcher, draw
from ogd.memory.examples.recording import record_examples
from ogd.memory.examples.rehearsal_gradient import micro_batches
from ogd.memory.model.eval_mode import isolated_eval_mode
from ogd.memory.model.parameters import device_of, unwrap
from ogd.memory.ranks.sharded_parameters import is_sharded

REFERENCE = 256  # examples: enough to estimate a loss


class Pairs(ExampleKind[Examples, Batch]):
    """Pairs (x, y) of a model whose logits are computed by a function; None: by the model itself."""

    def __init__(self, model: nn.Module, logits: Logits | None, shift_labels: bool | None):
        super().__init__(model)
        self.logits, self.shift_labels = logits, shift_labels
        self._prefetcher = Prefetcher()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy, which draws its batches again."""
        return {**vars(self), "_prefetcher": Prefetcher()}

    def empty(self) -> Examples:
        return Examples()

    def with_task(self, kept: Examples, new: NewTask, params: Mapping[str, Tensor]) -> Examples:
        drawn = None if new.count is None else new.count * new.merge
        examples = self._with_task(kept, new, drawn, params)
        if len(examples) == len(kept):
            raise ValueError("data is empty: there is no example to remember")
        return examples

    def sample(self, new: NewTask, params: Mapping[str, Tensor]) -> Examples:
        return self._with_task(Examples(), new, new.count, params)

    def _with_task(self, kept: Examples, new: NewTask, drawn: int | None, params: Mapping[str, Tensor]) -> Examples:
        model = ScoredModel(self.model, new.logits or self.logits, new.classes)
        sample = Sample(as_inputs(model.model, new.data), drawn, new.generator, CHUNK_SIZE, new.choose == "balanced")
        if new.count is not None and new.merge > 1:
            sample = ClusteredSample(sample, new.count)
        chunks: Iterable[Chunk] = all_examples(sample) if new.shared else sample
        device, shift = device_of(self.model), self.shift_labels
        with isolated_eval_mode(model.model), torch.no_grad():
            found = record_examples(model, params, chunks, device, expected=sample.count, shift_labels=shift)
            return kept.with_task(found, Task(None if model.classes is None else tuple(model.classes), new.logits))

    def with_part_of_stream(
        self, kept: Examples, chunk: Chunk, stay: Sequence[int], enter: Sequence[int], params: Mapping[str, Tensor]
    ) -> Examples:
        """Return those of the kept examples that stay, and those of a stream's next batch that enter."""
        model, device, shift = ScoredModel(self.model, self.logits), device_of(self.model), self.shift_labels
        with isolated_eval_mode(model.model), torch.no_grad():
            rows = torch.tensor(enter)
            new = list(record_examples(model, params, [chunk], device, rows=rows, shift_labels=shift))
        if not stay:
            return Examples().with_task(new, Task())
        return kept.select(torch.tensor(stay)).with_more(new)

    def moved(self, kept: Examples) -> Examples:
        device = device_of(self.model)
        return kept.to(device) if any(group.z.device != device for group in kept.groups) else kept

    def parts(self, kept: Examples, drawn: DrawnBatch) -> Sequence[Batch]:
        if not drawn.alpha and not any(group.labelled for group in kept.groups):
            raise ValueError("alpha=0 rehearses only labels, and no labels are kept: give alpha= a weight, such as 0.5")
        if kept.same_form and not drawn.shared:
            return [self._prefetcher.batch(kept, drawn.seed, drawn.number, drawn.size)]
        rows = draw(drawn.seed, drawn.number, len(kept), drawn.size)
        return list(kept.batches(own_rows(rows, drawn.shared and not is_sharded(self.model))))

    def micro_batches(self, part: Batch, numbers: int | None) -> Sequence[Batch]:
        return micro_batches(part, numbers)

    def _loss(self, kept: Examples, part: Batch, drawn: DrawnBatch) -> Tensor:
        return remembered_loss(self._outputs(part), part, drawn.alpha, drawn.labels)

    def _outputs(self, batch: Batch) -> Tensor:
        logits = batch.logits or self.logits
        return scores(unwrap(self.model) if logits is None else self.model, batch.x, logits)

    def reference_losses(self, kept: Examples, alpha: float, labels: bool) -> tuple[float, float]:
        rows = torch.linspace(0, len(kept) - 1, min(len(kept), REFERENCE)).round().long()
        found = [reference_losses(batch, alpha, labels) for batch in kept.batches(rows)]
        return sum(start for start, _ in found) / len(rows), sum(constant for _, constant in found) / len(rows)

    def change(self, kept: Examples, rows: Tensor) -> tuple[float, float]:
        change, size, n = 0.0, 0.0, 0
        with isolated_eval_mode(self.model), torch.no_grad():
            for batch in (batch for some in rows.split(CHUNK_SIZE) for batch in kept.batches(some)):
                for part in batch.split(max(CHUNK_BYTES // (4 * math.prod(batch.z.shape[1:])), 1)):
                    moved, squares, numbers = squared_change(self._outputs(part), part)
                    change, size, n = change + moved, size + squares, n + numbers
        return (change / max(n, 1)) ** 0.5, (size / max(n, 1)) ** 0.5

    def check_fits(self, kept: Examples) -> None:
        with isolated_eval_mode(self.model), torch.no_grad():
            for group in kept.groups:
                batch = group.batch(torch.zeros(1, dtype=torch.long, device=group.z.device), kept.tasks)
                try:
                    original_outputs(self._outputs(batch), batch.z)
                except Exception as error:
                    raise ValueError(
                        f"the memory belongs to another model: this one fails on a stored example ({error})"
                    ) from error

    def state(self, kept: Examples) -> dict[str, Any]:
        return examples_state(kept)

    def from_state(self, stored: Mapping[str, Any]) -> Examples:
        return examples_from_state(stored).to(device_of(self.model))
