"""The laboratory's soft projection is the dense one, implicit and explicit, and the library's."""

import numpy as np
import pytest
import torch
from torch import nn

import naive_lab
from ogd.lab import methods
from ogd.lab.benchmarks.batches import examples
from ogd.lab.experiments import resolve
from ogd.lab.methods import FinishedTask
from ogd.lab.optimizers import SGD
from ogd.lab.training.loop import take_step
from ogd.memory import GradientMemory
from small_lab import fit, make, stack, weights

WAYS = [
    {"projection": "implicit", "per_task": 30},
    {"projection": "implicit", "outputs": "all", "per_task": 30},
    {"projection": "explicit", "per_task": 30},
    {"in_total": 30},
]
OPTIMIZERS = {
    "sgd": {"lr": 0.5},
    "momentum": {"lr": 0.25, "momentum": 0.5},
    "adam": {"lr": 0.01, "optimizer": "adam"},
}


@pytest.mark.parametrize("softness", [1e-3, 0.5])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("options", WAYS, ids=str)
def test_the_loop_equals_a_naive_one(tiny, options, optimizer, softness):
    if optimizer == "adam" and options.get("projection") == "implicit":
        pytest.skip("there is no implicit projection under Adam")
    benchmark = make("split" if "outputs" in options else "rotated", tiny, tasks=3)
    options, schedule = {**options, "softness": softness}, {"epochs": 1, "batch_size": 7, **OPTIMIZERS[optimizer]}
    trained, result = fit(benchmark, methods.OGD(**options), **schedule)
    for run in (0, 1):
        module = stack().module(run)
        matrix = naive_lab.train(benchmark, naive_lab.OGD(run, **options), module, **schedule)
        for ours, theirs in zip(trained.module(run).parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(result.accuracy[run], matrix)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("softness", [0.0, 1e-3, 0.5])
@pytest.mark.parametrize("projection", ["implicit", "explicit"])
def test_laboratory_and_library_take_the_same_steps(tiny, projection, softness, momentum):
    benchmark, run, lr = make("rotated", tiny, tasks=3), 1, 0.3
    method, model = methods.OGD(per_task=12, projection=projection, softness=softness), stack(runs=[run])
    module = model.module(run)
    memory = GradientMemory(module, per_task=None, softness=softness)
    method.begin(model, seed=7)
    for number, task in enumerate(benchmark.tasks[:2], 1):
        finished = FinishedTask(task, model, number, 10, benchmark.outputs, seed=7)
        kept = finished.draw(12)
        method.end_task(finished)
        memory.remember((kept.x[0].flatten(1), kept.target[0].argmax(-1)))
    theirs, ours = SGD(model, lr, momentum), torch.optim.SGD(module.parameters(), lr, momentum)
    memory.protect(ours, every=1)
    constraint = method.constraint(theirs)
    task = benchmark.tasks[2]
    for step in range(6):
        index = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(step))[None, :7]
        batch = examples(task, index, task.columns([run]), benchmark.outputs)
        constraint.foresee(batch.x)
        take_step(theirs, method, constraint, batch, step)
        ours.zero_grad()
        nn.functional.cross_entropy(module(batch.x[0].flatten(1).double()), batch.target[0].argmax(-1)).backward()
        ours.step()
        for w, v in zip(constraint.settled().module(run).parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(w, v, rtol=0, atol=1e-10)


def test_softness_goes_with_every_choice_of_directions_and_changes_something(tiny):
    for others in ({}, {"refresh": 5}, *({"directions": kind} for kind in ("leverage", "pca", "sketch"))):
        found = [fit(make("rotated", tiny), methods.OGD(20, softness=mu, **others))[0] for mu in (0.0, 1e-12, 0.1, 1e6)]
        exact, tiny_softness, soft, none = (torch.cat([w.flatten() for w in weights(model)]) for model in found)
        plain = torch.cat([w.flatten() for w in weights(fit(make("rotated", tiny))[0])])
        torch.testing.assert_close(tiny_softness, exact, rtol=0, atol=1e-6)
        torch.testing.assert_close(none, plain, rtol=0, atol=1e-4)
        assert (soft - exact).norm() > 1e-3
        assert (soft - plain).norm() > 1e-3


def test_a_softness_is_part_of_the_key_only_where_it_is_given(tiny):
    plain, soft = resolve("rotated", "ogd", tiny), resolve("rotated", "ogd", tiny, softness=0.05)
    assert plain.options["softness"] == 0.0
    assert resolve("rotated", "ogd", tiny, softness=0).key == plain.key
    assert soft.options["softness"] == 0.05
    assert soft.key != plain.key
    for wrong in (-1, "much", float("nan")):
        with pytest.raises(ValueError, match="softness: must be a number of at least 0"):
            methods.OGD(softness=wrong)


@pytest.mark.parametrize("options", [{}, {"every": 3}], ids=["implicit", "explicit"])
def test_runs_of_different_softness_are_trained_as_if_alone(tiny, options):
    together, _ = fit(make("rotated", tiny), methods.OGD(20, softness=(0.05, 0.5), **options))
    for run, softness in enumerate((0.05, 0.5)):
        alone, _ = fit(make("rotated", tiny), methods.OGD(20, softness=softness, **options))
        for ours, theirs in zip(together.module(run).parameters(), alone.module(run).parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_runs_of_different_softness_must_fit_the_stack_and_are_all_soft(tiny):
    with pytest.raises(ValueError, match="softness: 3 values do not fit 2 runs"):
        fit(make("rotated", tiny), methods.OGD(20, softness=(0.1, 0.2, 0.3)))
    with pytest.raises(ValueError, match="softness: 0 is exact"):
        methods.OGD(20, softness=(0.0, 0.1))
