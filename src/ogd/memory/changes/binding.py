"""The tensor that each stored name refers to, and the update of a store after a change of the model.

the same tensor has another name       use the new name
the weight is computed                 pull its gradients back to the tensors from which it is computed
another tensor has the name            add zeros for new outputs, and warn once if its values differ
the tensor is gone                     raise a ValueError that names it
"""

import warnings
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from ogd.memory.changes.growth import pad_store
from ogd.memory.changes.insertion import check_insertions
from ogd.memory.changes.reparametrization import Reparametrization, mask_of, pull_back_store, reparametrization_of
from ogd.memory.model.eval_mode import isolated_eval_mode
from ogd.memory.model.parameters import Parameters, plain_names
from ogd.memory.projection.store import Store


class Binding:
    """The tensors of a store's names. They are held, because another tensor could get the id of a freed one."""

    def __init__(self, parameters: Parameters):
        self.parameters = parameters
        self.tensors: dict[str, Tensor] = {}
        self.known: list[Tensor] = []  # every parameter of the model when the names were bound
        self._places: list[tuple[dict[str, nn.Parameter | None], str, Tensor]] = []
        self._masks: dict[str, tuple[nn.Module, str, Tensor | None]] = {}  # the masks of pruned parameters

    def bind(self, names: Iterable[str]) -> None:
        """Bind these names to the model's present parameters."""
        params = self.parameters.named()
        modules = _modules(self.parameters.model)
        self.tensors = {name: params[name] for name in names}
        self.known = list(params.values())
        self._places, self._masks = [], {}
        for name, tensor in self.tensors.items():
            path, _, leaf = name.rpartition(".")
            self._places.append((modules[path]._parameters, leaf, tensor))
            if leaf.endswith("_orig"):
                pruned = leaf.removesuffix("_orig")
                self._masks[name] = (modules[path], pruned, mask_of(modules[path], pruned))

    def intact(self) -> bool:
        """Return whether every tensor is in its place and no pruning mask is new; fast enough for every step."""
        for parameters, leaf, tensor in self._places:
            if parameters.get(leaf) is not tensor:
                return False
        return not any(map(self._has_new_mask, self._masks))

    def rebind(self, store: Store) -> Store:
        """Return the store updated to the model's present names and shapes; the same store if nothing has changed."""
        params = self.parameters.named()
        same = all(params.get(name) is self.tensors[name] for name in store.shapes)
        if same and self.intact():
            return store
        moved, computed, replaced = self._classify(store, params)
        check_insertions(self.parameters, {s: c for s, c in moved.items() if s not in computed}, self.known)
        store = pad_store(store, {name: params[name].shape for name in replaced})
        warn_replaced([name for name in replaced if not _continues(self.tensors[name], params[name])])
        with isolated_eval_mode(self.parameters.model):
            store = pull_back_store(store, computed)
        renamed = {s: c for s, c in moved.items() if s != c and s not in computed}
        store = _rename_store(store, renamed)
        self.parameters.follow({s: [c] for s, c in renamed.items()} | {s: list(f.theta) for s, f in computed.items()})
        self.bind(store.shapes)
        return store

    def _classify(
        self, store: Store, params: dict[str, nn.Parameter]
    ) -> tuple[dict[str, str], dict[str, Reparametrization], list[str]]:
        """Return the present names of the stored tensors, which are computed, and which are replaced."""
        at = {id(p): name for name, p in params.items()}
        moved = {s: at[id(t)] for s, t in self.tensors.items() if s in store.shapes and id(t) in at}
        modules = _modules(self.parameters.model)
        computed: dict[str, Reparametrization] = {}
        for s in store.shapes:
            path, _, leaf = s.rpartition(".")
            pruned = leaf.removesuffix("_orig") if moved.get(s) == s else leaf
            changed = path in modules and self._changed(s, moved)
            phi = reparametrization_of(modules[path], path, pruned) if changed else None
            if phi is not None and (s not in moved or moved[s] in phi.theta):
                computed[s] = phi
        rest = [s for s in store.shapes if s not in moved and s not in computed]
        replaced = [s for s in rest if s in params and s not in moved.values()]
        if gone := [s for s in rest if s not in replaced]:
            raise ValueError(
                f"{', '.join(gone)}: remembered, but no longer a parameter of the model, under this or another name, "
                "so the remembered outputs cannot be protected: change the model before `remember`, or "
                "forget the tasks (memory.forget) and remember them again"
            )
        return moved, computed, replaced

    def _changed(self, s: str, moved: dict[str, str]) -> bool:
        """Return whether a stored weight may be computed now, because its tensor has moved or has a new mask."""
        return moved.get(s) != s or (s in self._masks and self._has_new_mask(s))

    def _has_new_mask(self, name: str) -> bool:
        module, leaf, mask = self._masks[name]
        return mask_of(module, leaf) is not mask


def warn_replaced(names: list[str]) -> None:
    if names:
        warnings.warn(
            f"{', '.join(names)}: replaced by another tensor with other values since the last `remember`. The stored "
            "gradients are those of the old tensor, but protect the new one from now on. If the new tensor changes the "
            "remembered outputs, forget the tasks (memory.forget) and remember them again. With every > 1, call "
            "memory.settle() before you copy weights",
            stacklevel=4,
        )


def _continues(old: Tensor, new: Tensor) -> bool:
    """Return whether a new tensor begins with the values of the old one, or cannot be compared."""
    if type(old) is not type(new) or old.is_meta or new.is_meta or old.ndim != new.ndim:
        return type(old) is not type(new) or old.is_meta or new.is_meta
    begin = new.detach()[tuple(slice(0, size) for size in old.shape)]
    return begin.shape == old.shape and torch.equal(begin.to(old.device, old.dtype), old.detach())


def _modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return every module by its plain name, with the wrapped module in place of a wrapper."""
    plain = plain_names(model)
    return {plain[name]: module for name, module in model.named_modules(remove_duplicate=False)}


def _rename_store(store: Store, names: dict[str, str]) -> Store:
    if not names:
        return store
    pieces = [replace(p, names=tuple(names.get(name, name) for name in p.names)) for p in store.pieces]
    shapes = {names.get(name, name): shape for name, shape in store.shapes.items()}
    after = Store(pieces, store.tasks, shapes, store.rows_per_example, store.sharded)
    after.grams = {frozenset(names.get(name, name) for name in key): K for key, K in store.grams.items()}
    return after
