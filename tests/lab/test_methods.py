from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import naive_lab
from ogd.lab import methods, training
from ogd.lab.benchmarks.batches import Batch, chunks
from ogd.lab.experiments import resolve
from ogd.lab.models.gradient import FactoredGradient
from ogd.lab.progress import Silent
from ogd.seeds import draw
from reference import flat
from small_lab import CASES, SCHEDULE, fit, make, stack, weights

OPTIMIZERS = {
    "sgd": {"lr": 0.5},
    "momentum": {"lr": 0.25, "momentum": 0.5},
    "adam": {"lr": 0.01, "optimizer": "adam"},
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["permuted", "rotated", "split"])
@pytest.mark.parametrize(("model", "method", "kind", "options"), [
    *(("mlp", *case) for case in CASES),
    # without biases, mean logits depend on one another up to the cut-off of K's eigenvalues: rounding decides
    *(("weights", *case) for case in CASES if case[2].get("outputs") != "mean"),
    *(("cnn", *case) for case in CASES if case[0] not in ("ogd", "gpm")),
    *(("cnn", "ogd", methods.OGD, {"per_task": 10, "outputs": outputs}) for outputs in ("true", "mean", "all")),
])  # fmt: skip
def test_the_loop_equals_a_naive_one(tiny, monkeypatch, name, model, method, kind, options, optimizer):
    if optimizer == "adam" and options.get("projection") == "implicit":
        pytest.skip("there is no implicit projection under Adam")
    monkeypatch.setattr("ogd.lab.methods.buffer.BLOCK", 4)
    _equals_a_naive_one(make(name, tiny, tasks=3), model, method, kind, options, **OPTIMIZERS[optimizer])


@pytest.mark.parametrize(
    "case", [case for case in CASES if case[0] in ("sgd", "der", "agem")], ids=lambda case: case[0]
)
def test_one_adam_for_all_tasks_equals_a_naive_one(tiny, case):
    kept = {"optimizer": "adam", "lr": 0.01, "keep_optimizer": True}
    _equals_a_naive_one(make("rotated", tiny, tasks=3), "mlp", *case, **kept)
    one, anew = (
        fit(make("rotated", tiny), methods.SGD(), **{**kept, "keep_optimizer": keep}) for keep in (True, False)
    )
    assert not one[0].params["0.weight"].equal(anew[0].params["0.weight"])


def _equals_a_naive_one(benchmark, model, method, kind, options, **optimizer):
    schedule = {"epochs": 1, "batch_size": 7, **optimizer}
    trained, result = fit(benchmark, kind(**options), kind=model, **schedule)
    for run in (0, 1):
        module = stack(model).module(run)
        matrix = naive_lab.train(benchmark, naive_lab.METHODS[method](run, **options), module, **schedule)
        for ours, theirs in zip(trained.module(run).parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(result.accuracy[run], matrix)


def test_implicit_projection_is_refused_where_it_would_be_wrong(tiny):
    method = methods.OGD(per_task=20, projection="implicit")
    for options in ({"optimizer": "adam", "lr": 0.01}, {"kind": "cnn"}):
        with pytest.raises(ValueError, match="projection: 'implicit' needs a StackedMLP and the optimizer sgd"):
            fit(make("rotated", tiny), method, **options)
    fit(make("rotated", tiny), methods.OGD(per_task=20), optimizer="adam", lr=0.01)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("outputs", ["true", "mean", "all"])
@pytest.mark.parametrize(("projection", "dtype", "tolerance"), [
    ("implicit", torch.float64, 1e-9),
    ("explicit", torch.float64, 1e-9),
    ("implicit", torch.float32, 1e-4),
    ("explicit", torch.float32, 1e-4),
])  # fmt: skip
def test_ogd_equals_algorithm_1_over_three_tasks(tiny, projection, dtype, tolerance, outputs, momentum):
    benchmark = make("permuted", tiny, tasks=3)
    schedule = {"epochs": 1, "batch_size": 7, "lr": 0.1 * (1 - momentum), "momentum": momentum}
    model = stack(runs=[1], dtype=dtype)
    method = methods.OGD(per_task=30, outputs=outputs, projection=projection)
    training.train(benchmark, model, method, progress=False, **schedule)
    module = stack(runs=[1]).module(1)
    naive_lab.train(benchmark, naive_lab.OGD(1, per_task=30, outputs=outputs), module, **schedule)
    ours, theirs = flat(model.module(1).parameters()), flat(module.parameters())
    assert (ours - theirs).norm() < tolerance * theirs.norm()


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("every", [1, 4, 1000])
def test_ogd_moves_only_where_stored_outputs_do_not_change(tiny, kind, optimizer, every):
    benchmark, schedule = make("rotated", tiny, tasks=2), {**SCHEDULE, **OPTIMIZERS[optimizer]}
    model = stack(kind)
    method = methods.OGD(per_task=20, projection="explicit", every=every)
    first = training.first_task(benchmark, model, training.Schedule(**schedule), Silent())
    training.train(benchmark, model, method, first=first, progress=False, **schedule)
    moved = {name: (w - first.finished[0][name]).detach() for name, w in model.params.items()}
    stored = [piece.since(0) for piece in method.store.pieces]
    overlaps = torch.zeros(2, 20, dtype=torch.float64)
    for piece in stored:
        overlaps += piece.block[0:20].overlap([moved[name] for name in piece.names])
    length = sum(float((u**2).sum()) for u in moved.values()) ** 0.5
    assert length > 0.1
    assert overlaps.abs().max() < 1e-9


@pytest.mark.parametrize("per_task", [10, 500])
def test_ogd_with_one_example_and_with_more_than_it_has_weights(tiny, per_task):
    benchmark = make("rotated", tiny, tasks=3)
    for projection in ("implicit", "explicit"):
        _, result = fit(benchmark, methods.OGD(per_task, "all", projection), lr=0.1)
        assert np.isfinite(result.accuracy).all()


@pytest.mark.parametrize("name", ["permuted", "rotated", "split"])
@pytest.mark.parametrize(("_method", "kind", "options"), CASES)
def test_run_3_of_10_equals_run_3_alone(tiny, name, _method, kind, options):
    benchmark = make(name, tiny)
    many, all_runs = fit(benchmark, kind(**options), runs=10)
    alone, one_run = fit(benchmark, kind(**options), runs=[3])
    for a, b in zip(weights(many), weights(alone), strict=True):
        torch.testing.assert_close(a[3], b[0], rtol=1e-12, atol=1e-12)
    assert (all_runs.accuracy[3] == one_run.accuracy[0]).all()


@pytest.mark.parametrize("name", ["permuted", "rotated", "split"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_run_of_agem_does_not_depend_on_the_others_by_a_single_bit(tiny, name, dtype):
    found = {}
    for runs in ([0, 3, 5], [0], [3], [5]):
        model = stack(runs=runs, dtype=dtype)
        training.train(make(name, tiny), model, methods.AGEM(6, 4), **SCHEDULE, progress=False)
        for place, run in enumerate(runs):
            found.setdefault(run, []).append([w[place] for w in weights(model)])
    for together, alone in found.values():
        assert all(a.equal(b) for a, b in zip(together, alone, strict=True))


def test_agem_leaves_a_gradient_alone_where_the_reference_is_zero():
    model, method = stack(), methods.AGEM()
    x = torch.rand(2, 5, 30, dtype=torch.float64)
    gradient = model.gradient(Batch(x, torch.eye(10, dtype=torch.float64)[:5].expand(2, 5, 10)))
    nothing = FactoredGradient([(a, 0 * d) for a, d in gradient.pairs])
    method.buffer = SimpleNamespace(draw=lambda step: None)
    found = method.transform(gradient, SimpleNamespace(gradient=lambda batch: nothing), 0)
    for a, b in zip(found.tensors(), gradient.tensors(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["permuted", "rotated", "split"])
@pytest.mark.parametrize(("_method", "kind", "options"), CASES)
def test_a_shared_first_task_changes_nothing(tiny, name, _method, kind, options):
    benchmark = make(name, tiny)
    plain, expected = fit(benchmark, kind(**options), curve_every=4)
    first = training.first_task(benchmark, stack(), training.Schedule(**SCHEDULE, curve_every=4), Silent())
    shared, found = fit(benchmark, kind(**options), curve_every=4, first=first)
    assert all(a.equal(b) for a, b in zip(weights(plain), weights(shared), strict=True))
    assert (found.accuracy == expected.accuracy).all()
    np.testing.assert_array_equal(found.curve, expected.curve)
    assert found.curve_steps == expected.curve_steps


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (methods.AGEM, {"per_task": 20}),
        (methods.AGEM, {"reference_batch": 3}),
        (methods.ER, {"per_task": 20}),
        (methods.ER, {"replay_batch": 3}),
        (methods.ER, {"replay_every": 2}),
        (methods.ER, {"in_total": 20}),
        (methods.DER, {"per_task": 20}),
        (methods.DER, {"replay_batch": 3}),
        (methods.DER, {"alpha": 0.1}),
        (methods.DER, {"replay_every": 2}),
        (methods.OGD, {"per_task": 20}),
        (methods.OGD, {"outputs": "mean"}),
        (methods.OGD, {"outputs": "all"}),
        (methods.OGD, {"projection": "explicit", "every": 5}),
        (methods.GPM, {"threshold_input": 0.99}),
        (methods.GPM, {"threshold": 0.9}),
        (methods.GPM, {"basis_examples": 20}),
        (methods.EWC, {"ewc_lambda": 2.0}),
        (methods.EWC, {"fisher_examples": 20}),
        (methods.EWC, {"fisher_labels": "sampled"}),
    ],
)
def test_every_option_changes_something(tiny, kind, options):
    benchmark = make("rotated", tiny)
    assert not fit(benchmark, kind())[0].weights[0].equal(fit(benchmark, kind(**options))[0].weights[0])


@pytest.mark.parametrize(("kind", "option"), [(methods.EWC, "ewc_lambda"), (methods.DER, "alpha")])
def test_what_is_tuned_may_differ_from_run_to_run(tiny, kind, option):
    benchmark = make("rotated", tiny)
    both, _ = fit(benchmark, kind(**{option: [1.0, 5.0]}))
    for r, value in enumerate((1.0, 5.0)):
        assert both.weights[0][r].equal(fit(benchmark, kind(**{option: value}))[0].weights[0][r])


def test_mtl_sees_each_task_in_equal_shares_and_no_example_twice(tiny):
    tasks = make("rotated", tiny, tasks=3).tasks
    index = draw(0, [0, 1], "x", 180, 60)
    assert all(len(set(row)) == 60 for row in index.tolist())
    seen = [batch.target.argmax(-1) for chunk in chunks(tasks, index, [None] * 3, 10, 7) for batch in chunk.split(7)]
    assert [y.shape[1] for y in seen] == [7] * 8 + [4]
    labels = torch.cat([task.train.y for task in tasks])
    assert torch.cat(seen, 1).equal(labels[index])


@pytest.mark.parametrize(
    ("make_one", "message"),
    [
        (lambda: methods.OGD(outputs="foo"), "outputs: there is no 'foo'"),
        (lambda: methods.OGD(projection="Explicit"), "projection: there is no 'Explicit'; did you mean 'explicit'"),
        (lambda: methods.OGD(projection="explicit", every=0), "every: must be at least 1"),
        (lambda: methods.OGD(projection="implicit", every=2), "every 2 needs 'explicit'"),
        (lambda: methods.OGD(per_task=1.5), "per_task: must be a whole number"),
        (lambda: methods.AGEM(per_task=0), "per_task: must be at least 1"),
        (lambda: methods.ER(replay_batch=0), "replay_batch: must be at least 1"),
        (lambda: methods.DER(replay_every=0), "replay_every: must be at least 1"),
        (lambda: methods.AGEM(in_total=-1), "in_total: must be at least 0"),
        (lambda: methods.DER(alpha=-1), "alpha: must be a number of at least 0"),
        (lambda: methods.DER(alpha="x"), "alpha: must be a number of at least 0"),
        (lambda: methods.AGEM(reference_batch=0), "reference_batch: must be"),
        (lambda: methods.GPM(threshold=1.1), "threshold: must be at most 1, not 1.1"),
        (lambda: methods.GPM(threshold_input=-0.1), "threshold_input: must be a number of at least 0"),
        (lambda: methods.EWC(-1.0), "ewc_lambda: must be a number of at least 0"),
        (lambda: methods.EWC(float("nan")), "ewc_lambda: must be a number of at least 0"),
        (lambda: methods.EWC(fisher_labels="foo"), "fisher_labels: there is no 'foo'"),
        (lambda: methods.EWC(fisher_examples=0), "fisher_examples: must be"),
    ],
)
def test_a_method_refuses_nonsense(make_one, message):
    with pytest.raises(ValueError, match=message):
        make_one()


def test_a_buffer_of_a_fixed_size_is_shared_equally_by_the_tasks_so_far(tiny):
    """11 examples: of one task, then 6 + 5 of two and 4 + 4 + 3 of three, those of before among them."""
    benchmark, found = make("rotated", tiny, tasks=3), []

    class Watched(methods.DER):
        def end_task(self, finished):
            super().end_task(finished)
            found.append((list(self.buffer.counts), self.buffer.stored))

    fit(benchmark, Watched(in_total=11))
    assert [counts for counts, _ in found] == [[11], [6, 5], [4, 4, 3]]
    for (before, old), (after, new) in pairwise(found):
        for a, b, n in zip(_starts(before), _starts(after), after, strict=False):
            assert old.x[:, a : a + n].equal(new.x[:, b : b + n])
            assert old.z[:, a : a + n].equal(new.z[:, b : b + n])
    with pytest.raises(ValueError, match="in_total: 2 examples cannot be shared by 3 tasks"):
        fit(benchmark, methods.ER(in_total=2))
    with pytest.raises(ValueError, match="in_total: stands in place of per_task"):
        resolve("rotated", "er", tiny, in_total=20, per_task=10)


def _starts(counts):
    return [sum(counts[:t]) for t in range(len(counts))]


def test_what_does_not_fit_the_runs_or_the_head(tiny):
    with pytest.raises(ValueError, match="ewc_lambda: 3 values do not fit 2 runs"):
        fit(make("rotated", tiny), methods.EWC([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match="per_task: 9 gradients cannot hold all 10 logits"):
        fit(make("rotated", tiny), methods.OGD(9, "all"))


@pytest.mark.parametrize("every", [1, 7])
def test_looking_changes_nothing(tiny, every):
    benchmark, curves = make("rotated", tiny), []
    for projection in ["explicit"] if every > 1 else ["explicit", "implicit"]:
        method = methods.OGD(20, projection=projection, every=every)
        plain, _ = fit(benchmark, method)
        watched, result = fit(benchmark, method, curve_every=1)
        curves.append(result.curve)
        for a, b in zip(weights(plain), weights(watched), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(curves[0], curves[-1])  # also of weights that are not settled yet
