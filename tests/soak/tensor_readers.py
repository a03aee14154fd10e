"""Readers of files of tensors: checkpoints, memories of gradients, memories of examples.

An accident is told by the digest. So half of the inputs here are made by somebody who knows how such a file is built:
another document or other tensors, with the digest that fits them, or with none.
"""

import contextlib
import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

import mutate
from ogd import tensor_files
from ogd.lab import benchmarks, data
from ogd.lab.methods import OGD
from ogd.lab.models import StackedMLP
from ogd.lab.optimizers import optimizer_of
from ogd.lab.records.request import Schedule
from ogd.lab.training import Checkpoint, History, checkpoint, train
from ogd.lab.training.loop import Diverged
from ogd.memory import GradientMemory, Memory, load
from ogd.memory.loading import KINDS
from ogd.memory.saving import from_leaves
from readers import Broken, Reader

VALUES = (float("nan"), float("inf"), -1.0, 0.0, 1.0, 7.0, 1e30, 300.0)
DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


class Sound:
    """A sound file of tensors, of which spoiled ones are made."""

    def __init__(self, path: Path, key: str) -> None:
        self.key, self.content = key, path.read_bytes()
        self.document, self.tensors = tensor_files.read(path, key)
        del self.document[tensor_files.DIGEST]

    def spoiled(self, rng: random.Random) -> bytes:
        return mutate.spoiled(self.content, rng)

    def altered(self, rng: random.Random) -> bytes:
        """Another document or other tensors, with a digest that fits or with none."""
        document, tensors = copy.deepcopy(self.document), dict(self.tensors)
        if rng.random() < 0.6:
            for _ in range(rng.choice((1, 1, 2))):
                document = mutate.changed(document, rng)
        else:
            for _ in range(rng.choice((1, 1, 2))):
                alter_tensors(tensors, rng)
        if isinstance(document, dict) and rng.random() < 0.9:
            document[tensor_files.DIGEST] = _digest(document, tensors)
        return save(tensors, {self.key: json.dumps(document)})


def _digest(document: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """The digest of what a reader will see: JSON does not give everything back as it was."""
    try:
        return tensor_files.digest(json.loads(json.dumps(document)), tensors)
    except (ValueError, UnicodeError):
        return "0" * 32


def alter_tensors(tensors: dict[str, Tensor], rng: random.Random) -> None:
    """Change one tensor: its name, type, shape or values."""
    name = rng.choice(sorted(tensors))
    t = tensors[name]
    match rng.randrange(8):
        case 0:
            tensors[rng.choice(("a", "0.G", "9.A", "weights/x", "finished/7/0", name + "0"))] = tensors.pop(name)
        case 1:
            del tensors[name]
        case 2:
            tensors[name] = t.to(rng.choice(DTYPES))
        case 3:
            tensors[name] = rng.choice(
                (t.flatten(), t[:0], t[:1], t[:-1], torch.cat([t, t]), t.sum(), t[None], t.movedim(0, -1), t[..., :0])
            ).contiguous()
        case 4 | 5:
            new = t.clone().flatten()
            if new.numel():
                at, value = rng.randrange(new.numel()), rng.choice(VALUES)
                new[at] = value if t.is_floating_point() else rng.choice((0, 1, 2, 7, 100))
            tensors[name] = new.view(t.shape)
        case 6:
            tensors[name] = tensors[rng.choice(sorted(tensors))].clone()
        case 7:
            tensors[rng.choice(("extra", "99.D", "curve", "accuracy", "0.x9"))] = t.clone()


def _spoiler(path: Path, sounds: dict[str, Sound], chosen: list[str]) -> Callable[[random.Random], bool]:
    def spoil(rng: random.Random) -> bool:
        chosen[:] = [rng.choice(sorted(sounds))]
        sound, knows = sounds[chosen[0]], rng.random() < 0.5
        path.write_bytes(sound.altered(rng) if knows else sound.spoiled(rng))
        return knows

    return spoil


def _equal(state: dict[str, Any], sound: Sound) -> bool:
    """Whether the state of a memory is the one that was saved."""
    document = {key: value for key, value in state.items() if key != "tensors"}
    return document == sound.document and _alike(state["tensors"], sound.tensors)


def _alike(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return tensor_files.digest({}, one) == tensor_files.digest({}, other)  # to which NaN is NaN


def models() -> dict[str, tuple[nn.Module, Any, Any]]:
    """Models and their batches, one for each form in which a gradient is kept."""
    torch.manual_seed(0)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    linear = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 3))
    convolved = nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, 3)
    )
    sparse = nn.Sequential(nn.Embedding(60, 4), nn.Flatten(), nn.Linear(12, 3))
    return {
        "linear": (linear, torch.randn(6, 5), y),
        "convolved": (convolved.eval(), torch.randint(256, (6, 2, 3, 3)) / 255, y),
        "sparse": (sparse, torch.randint(60, (6, 3)), y),
    }


def memory_readers(folder: Path) -> list[Reader]:
    """Memories, of gradients and of examples."""
    made = models()
    found = []
    for keep in ("gradients", "examples"):
        path, sounds, chosen = folder / f"{keep}.safetensors", {}, list[str]()
        for name, (model, x, y) in made.items():
            memory = KINDS[keep](model, per_task=3, budget=40, shrink=True)
            memory.remember((x, y), classes=[0, 1, 2])
            memory.remember((x, y))
            memory.save(path)
            sounds[name] = Sound(path, "ogd.memory")

        def use(memory: Memory) -> None:
            stored = memory.state_dict()
            type(memory)(memory.model).load_state_dict(stored)
            assert memory.nbytes >= 0
            assert sum(memory.task_sizes) == len(memory)
            repr(memory)
            if isinstance(memory, GradientMemory):
                update = {name: torch.ones_like(p) for name, p in memory.model.named_parameters()}
                projected = memory.project(update)
                if not all(bool(t.isfinite().all()) for t in projected.values()):
                    raise Broken("a memory that was read projects to what is not finite")

        found.append(
            Reader(
                f"memories of {keep}",
                3,
                _spoiler(path, sounds, chosen),
                lambda path=path, chosen=chosen: load(path, made[chosen[0]][0]),
                str(path),
                lambda memory, sounds=sounds, chosen=chosen: _equal(
                    from_leaves(memory.state_dict()), sounds[chosen[0]]
                ),
                use,
                ValueError,
            )
        )
    return found


class Stop(Exception):
    """Ends a training."""


class Bomb:
    """Ends a training after so many steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def start(self, total: int) -> None:
        pass

    def advance(self, done: int, note: str) -> None:
        self.left -= done
        if self.left < 0:
            raise Stop


def checkpoint_reader(folder: Path, dataset: data.Dataset) -> Reader:
    """Checkpoints: what is not used is told, with its name, and training starts again."""
    benchmark = benchmarks.rotated(3, dataset=dataset)
    settings = {"epochs": 2, "batch_size": 20, "lr": 0.1, "momentum": 0.5, "curve_every": 4}
    path, sounds, chosen = folder / "soak.safetensors", {}, list[str]()

    def trained(steps: int = 10**6) -> Any:
        model = StackedMLP((30, 4, 10), runs=2)
        kept = Checkpoint(path, "soak")
        kept.last = -1e9
        return train(benchmark, model, OGD(6), checkpoint=kept, progress=Bomb(steps), **settings)

    checkpoint.PATIENCE = 0.0
    for steps in (4, 7, 16):
        try:
            trained(steps)
        except Stop:
            sounds[str(steps)] = Sound(path, "ogd")
        path.unlink()
    checkpoint.PATIENCE = 10.0**10  # reading must not write
    schedule = Schedule(**settings)
    model = StackedMLP((30, 4, 10), runs=2)
    like = History(weights=dict(model.params), optimizer=optimizer_of(schedule, model).state())

    def read() -> History | None:
        import warnings

        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            identity = str(sounds[chosen[0]].document["identity"])
            found = Checkpoint(path, identity).read(like, len(benchmark))
        if found is None and not (told and str(path) in str(told[0].message)):
            raise Broken("a checkpoint was passed over without a word")
        return found

    def same(history: History) -> bool:
        tensors, about = checkpoint._packed(history)
        sound = sounds[chosen[0]]
        return {**sound.document, **about} == sound.document and _alike(tensors, sound.tensors)

    def use(_: History) -> None:
        with contextlib.suppress(Diverged):  # weights of 1e30, which somebody wrote there, are told so
            assert trained().accuracy.shape == (2, 4, 3)

    return Reader("checkpoints", 4, _spoiler(path, sounds, chosen), read, str(path), same, use)
