import numpy as np
import pytest
import torch

import naive_lab
from ogd import benchmarks, methods, training
from ogd.models import StackedMLP, mlp
from ogd.seeds import draw
from ogd.training.batches import chunks
from ogd.training.evaluation import evaluate
from ogd.training.progress import Silent
from reference import flat


class Doubled(methods.Method):
    name = "doubled"

    def transform(self, gradient, model):
        return [(a, 2 * delta) for a, delta in gradient]


class Diary(methods.SGD):
    def __init__(self):
        self.pages = []

    def end_task(self, model, task, columns):
        self.pages.append((task.name, model.weights[0].detach().clone()))


def make(name, dataset, tasks=2):
    options = {"partition": {2: "01234/56789", 3: "0123/456/789"}[tasks]} if name == "split" else {}
    return getattr(benchmarks, name)(tasks, dataset=dataset, **options)


def fit(benchmark, method=None, runs=2, **options):
    model = StackedMLP((benchmark.inputs, 8, 6, benchmark.outputs), runs=runs, seed=0, dtype=torch.float64)
    options = {"epochs": 2, "batch_size": 7, "lr": 0.5, "progress": False, **options}
    return model, training.train(benchmark, model, method, **options)


SCHEDULE = {"epochs": 2, "batch_size": 7, "lr": 0.5}

CASES = [
    ("sgd", methods.SGD, {}),
    ("mtl", methods.MTL, {}),
    ("agem", methods.AGEM, {"storage": 6, "reference_batch": 4}),
    ("ewc", methods.EWC, {"ewc_lambda": 3.0, "fisher_examples": 11}),
    ("ewc", methods.EWC, {"ewc_lambda": 3.0, "fisher_examples": 11, "fisher_labels": "sampled"}),
    *(
        ("ogd", methods.OGD, {"storage": 30, "logits": logits, "projection": projection})
        for logits in ("true", "mean", "all")
        for projection in ("implicit", "explicit")
    ),
]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("name", ["permuted", "rotated", "split"])
@pytest.mark.parametrize(("method", "kind", "options"), CASES)
def test_the_loop_equals_a_naive_one(tiny, monkeypatch, name, method, kind, options, momentum):
    monkeypatch.setattr("ogd.methods.agem.BLOCK", 4)
    benchmark = make(name, tiny, tasks=3)
    schedule = {"epochs": 1, "batch_size": 7, "lr": 0.5 * (1 - momentum), "momentum": momentum}
    model, result = fit(benchmark, kind(**options), **schedule)
    for run in (0, 1):
        module, matrix = naive_lab.train(benchmark, naive_lab.METHODS[method](run, **options), (8, 6), **schedule)
        for ours, theirs in zip(model.module(run).parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(result.accuracy[run], matrix)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("logits", ["true", "mean", "all"])
@pytest.mark.parametrize(("projection", "dtype", "tolerance"), [
    ("implicit", torch.float64, 1e-9),
    ("explicit", torch.float64, 1e-9),
    ("implicit", torch.float32, 1e-4),
    ("explicit", torch.float32, 1e-4),
])  # fmt: skip
def test_ogd_equals_algorithm_1_over_three_tasks(tiny, projection, dtype, tolerance, logits, momentum):
    benchmark = make("permuted", tiny, tasks=3)
    schedule = {"epochs": 1, "batch_size": 7, "lr": 0.1 * (1 - momentum), "momentum": momentum}
    model = StackedMLP((30, 8, 6, 10), runs=[1], dtype=dtype)
    method = methods.OGD(storage=30, logits=logits, projection=projection)
    training.train(benchmark, model, method, progress=False, **schedule)
    module, _ = naive_lab.train(benchmark, naive_lab.OGD(1, storage=30, logits=logits), (8, 6), **schedule)
    ours, theirs = flat(model.module(1).parameters()), flat(module.parameters())
    assert (ours - theirs).norm() < tolerance * theirs.norm()


@pytest.mark.parametrize("every", [1, 4, 1000])
def test_ogd_moves_only_where_stored_outputs_do_not_change(tiny, every):
    benchmark = make("rotated", tiny, tasks=2)
    task = benchmark.tasks[0]
    model = StackedMLP((30, 8, 6, 10), runs=2, dtype=torch.float64)
    method = methods.OGD(storage=20, projection="explicit", every=every)
    first = training.first_task(benchmark, model, training.Schedule(**SCHEDULE), Silent())
    training.train(benchmark, model, method, first=first, progress=False, **SCHEDULE)
    method.begin(model, 0)
    anchored = StackedMLP((30, 8, 6, 10), runs=2, dtype=torch.float64)
    with torch.no_grad():
        for w, value in zip(anchored.parameters(), first.finished[0], strict=True):
            w.copy_(value)
    method.end_task(anchored, task, None)
    moved = [((w - v).detach(), (b - c).detach()) for (w, b), (v, c) in zip(model.layers, anchored.layers, strict=True)]
    overlap = sum(block.overlap(pair) for block, pair in zip(method.blocks, moved, strict=True))
    length = sum(float((w**2).sum()) for pair in moved for w in pair) ** 0.5
    assert length > 0.1
    assert overlap.abs().max() < 1e-9


@pytest.mark.parametrize("storage", [10, 500])
def test_ogd_with_one_example_and_with_more_than_it_has_weights(tiny, storage):
    benchmark = make("rotated", tiny, tasks=3)
    for projection in ("implicit", "explicit"):
        _, result = fit(benchmark, methods.OGD(storage, "all", projection), lr=0.1)
        assert np.isfinite(result.accuracy).all()


@pytest.mark.parametrize("name", ["permuted", "rotated", "split"])
@pytest.mark.parametrize(("_method", "kind", "options"), CASES)
def test_run_3_of_10_equals_run_3_alone(tiny, name, _method, kind, options):
    benchmark = make(name, tiny)
    many, all_runs = fit(benchmark, kind(**options), runs=10)
    alone, one_run = fit(benchmark, kind(**options), runs=[3])
    for a, b in zip(many.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a[3], b[0], rtol=1e-12, atol=1e-12)
    assert (all_runs.accuracy[3] == one_run.accuracy[0]).all()


@pytest.mark.parametrize("name", ["permuted", "rotated", "split"])
@pytest.mark.parametrize(("_method", "kind", "options"), CASES)
def test_a_shared_first_task_changes_nothing(tiny, name, _method, kind, options):
    benchmark = make(name, tiny)
    plain, expected = fit(benchmark, kind(**options), curve_every=4)
    model = StackedMLP((30, 8, 6, 10), runs=2, dtype=torch.float64)
    first = training.first_task(benchmark, model, training.Schedule(**SCHEDULE, curve_every=4), Silent())
    shared, found = fit(benchmark, kind(**options), curve_every=4, first=first)
    assert all(a.equal(b) for a, b in zip(plain.parameters(), shared.parameters(), strict=True))
    assert (found.accuracy == expected.accuracy).all()
    np.testing.assert_array_equal(found.curve, expected.curve)
    assert found.curve_steps == expected.curve_steps


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (methods.AGEM, {"storage": 20}),
        (methods.AGEM, {"reference_batch": 3}),
        (methods.OGD, {"storage": 20}),
        (methods.OGD, {"logits": "mean"}),
        (methods.OGD, {"logits": "all"}),
        (methods.OGD, {"projection": "explicit", "every": 5}),
        (methods.EWC, {"ewc_lambda": 2.0}),
        (methods.EWC, {"fisher_examples": 20}),
        (methods.EWC, {"fisher_labels": "sampled"}),
    ],
)
def test_every_option_changes_something(tiny, kind, options):
    benchmark = make("rotated", tiny)
    assert not fit(benchmark, kind())[0].weights[0].equal(fit(benchmark, kind(**options))[0].weights[0])


def test_transform_is_used(tiny):
    benchmark = make("rotated", tiny)
    doubled, _ = fit(benchmark, Doubled(), lr=0.25)
    assert doubled.weights[0].allclose(fit(benchmark, lr=0.5)[0].weights[0])


def test_lambda_may_differ_from_run_to_run(tiny):
    benchmark = make("rotated", tiny)
    both, _ = fit(benchmark, methods.EWC(ewc_lambda=[1.0, 5.0]))
    for r, lam in enumerate((1.0, 5.0)):
        assert both.weights[0][r].equal(fit(benchmark, methods.EWC(ewc_lambda=lam))[0].weights[0][r])


def test_the_same_seed_gives_the_same_result_and_another_does_not(tiny):
    first, again, other = (fit(make("rotated", tiny), seed=seed)[0].weights[0] for seed in (0, 0, 1))
    assert first.equal(again)
    assert not first.equal(other)


def test_training_leaves_the_users_generator_alone(tiny):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    fit(make("permuted", tiny))
    assert torch.rand(3).equal(expected)


def test_mtl_sees_each_task_in_equal_shares_and_no_example_twice(tiny):
    tasks = make("rotated", tiny, tasks=3).tasks
    index = draw(0, [0, 1], "x", 180, 60)
    assert all(len(set(row)) == 60 for row in index.tolist())
    seen = [batch.target.argmax(-1) for chunk in chunks(tasks, index, [None] * 3, 10, 7) for batch in chunk.split(7)]
    assert [y.shape[1] for y in seen] == [7] * 8 + [4]
    labels = torch.cat([task.train.y for task in tasks])
    assert torch.cat(seen, 1).equal(labels[index])


def test_heads_shut_out_other_classes(tiny):
    model, _ = fit(make("split", tiny), epochs=1)
    fresh = StackedMLP(model.sizes, runs=2, seed=0, dtype=torch.float64)
    one_task = benchmarks.from_datasets([_pair(make("split", tiny).tasks[0])], classes=[range(5)])
    grown = StackedMLP((30, 8, 6, 5), runs=2, dtype=torch.float64)
    with torch.no_grad():
        for mine, theirs in zip(grown.parameters(), fresh.parameters(), strict=True):
            mine.copy_(theirs[:, : mine.shape[1]])
    training.train(one_task, grown, epochs=1, batch_size=7, lr=0.5, progress=False)
    model, _ = _first_task_only(tiny)
    torch.testing.assert_close(model.weights[2][:, :5], grown.weights[2], rtol=1e-9, atol=1e-9)
    assert model.weights[2][:, 5:].equal(fresh.weights[2][:, 5:])


def _pair(task):
    return (task.train.x, task.train.y), (task.test.x, task.test.y)


def _first_task_only(dataset):
    task = make("split", dataset).tasks[0]
    return fit(benchmarks.Benchmark("split", (task,), 30, 10), epochs=1)


def test_curves_hold_the_tasks_seen(tiny):
    benchmark = make("rotated", tiny)
    _, result = fit(benchmark, curve_every=6)  # 9 steps an epoch, 18 a task
    assert result.curve_steps == [6, 12, 18, 24, 30, 36]
    assert np.isnan(result.curve[:, :3, 1]).all()
    assert not np.isnan(result.curve[:, 3:]).any()
    assert (result.curve[:, 2, 0] == result.accuracy[:, 1, 0]).all()
    assert (result.curve[:, 5] == result.accuracy[:, 2]).all()
    assert fit(benchmark)[1].curve.shape == (2, 0, 2)


def test_end_task_is_called_with_the_trained_model(tiny):
    diary = Diary()
    model, _ = fit(make("rotated", tiny), diary)
    assert [name for name, _ in diary.pages] == ["0°", "10°"]
    assert diary.pages[1][1].equal(model.weights[0])
    assert not diary.pages[0][1].equal(model.weights[0])


def test_evaluation_is_in_the_model_s_precision_and_any_batch(tiny, monkeypatch):
    task = make("permuted", tiny).tasks[1]
    model = StackedMLP((30, 8, 10), runs=[4, 2])
    monkeypatch.setattr("ogd.training.evaluation.BATCH", 7)
    found = evaluate(model, [task], [task.columns([4, 2])])
    for r, run in enumerate((4, 2)):
        x = task.test.x[:, task.columns([run])[0]]
        assert found[r, 0] == naive_lab.accuracy(model.module(run), x, task.test.y, list(range(10)))


def test_divergence_stops_and_says_where(tiny):
    with pytest.raises(training.Diverged, match=r"run 0, 1 .* sgd at lr 1e\+200, task 1/2, epoch [12]/2, by step \d+"):
        fit(make("rotated", tiny), lr=1e200, epochs=2)
    with pytest.raises(
        training.Diverged, match=r"run 1 .* ewc \(λ = 1, 1e\+09\) at lr 0.5, task 2/2, epoch [12]/2, by step"
    ):
        fit(make("rotated", tiny), methods.EWC([1.0, 1e9]))


@pytest.mark.parametrize(
    ("make_one", "message"),
    [
        (lambda: methods.OGD(logits="foo"), "logits: there is no 'foo'"),
        (lambda: methods.OGD(projection="Explicit"), "projection: there is no 'Explicit'; did you mean 'explicit'"),
        (lambda: methods.OGD(projection="explicit", every=0), "every: must be a whole number"),
        (lambda: methods.OGD(every=2), "every: 2 needs projection 'explicit'"),
        (lambda: methods.OGD(storage=1.5), "storage: must be a whole number"),
        (lambda: methods.AGEM(storage=0), "storage: must be a whole number"),
        (lambda: methods.AGEM(reference_batch=0), "reference_batch: must be"),
        (lambda: methods.EWC(-1.0), "ewc_lambda: must be a number of at least 0"),
        (lambda: methods.EWC(float("nan")), "ewc_lambda: must be a number of at least 0"),
        (lambda: methods.EWC(fisher_labels="foo"), "fisher_labels: there is no 'foo'"),
        (lambda: methods.EWC(fisher_examples=0), "fisher_examples: must be"),
    ],
)
def test_a_method_refuses_nonsense(make_one, message):
    with pytest.raises(ValueError, match=message):
        make_one()


def test_what_does_not_fit_the_runs_or_the_head(tiny):
    with pytest.raises(ValueError, match="ewc_lambda: 3 values do not fit 2 runs"):
        fit(make("rotated", tiny), methods.EWC([1.0, 2.0, 3.0]))
    with pytest.raises(ValueError, match="storage: 9 gradients cannot hold all 10 logits"):
        fit(make("rotated", tiny), methods.OGD(9, "all"))


@pytest.mark.parametrize("every", [1, 7])
def test_looking_changes_nothing(tiny, every):
    benchmark = make("rotated", tiny)
    for projection in ["explicit"] if every > 1 else ["explicit", "implicit"]:
        method = methods.OGD(20, projection=projection, every=every)
        plain, _ = fit(benchmark, method)
        watched, _ = fit(benchmark, method, curve_every=3)
        for a, b in zip(plain.parameters(), watched.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_progress_reaches_the_end(tiny):
    class Counter:
        total = done = 0

        def start(self, total):
            self.total = total

        def advance(self, done, note):
            self.done += done

    counter = Counter()
    fit(make("split", tiny), progress=counter)
    assert counter.total == counter.done == 2 * 2 * 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs: must be at least 1"),
        ({"batch_size": 0}, "batch_size: must be at least 1"),
        ({"batch_size": 61}, "batch_size: 61 is above the 60 training examples"),
        ({"lr": -1.0}, "lr: must be a positive number"),
        ({"lr": float("nan")}, "lr: must be a positive number"),
        ({"curve_every": 0}, "curve_every: must be at least 1"),
        ({"epochs": 1.5}, "epochs: must be a whole number"),
        ({"epochs": None}, "epochs: must be a whole number"),
        ({"seed": -1}, "seed: must be at least 0"),
        ({"lr": "x"}, "lr: must be a number"),
    ],
)
def test_bad_arguments_are_named(tiny, options, message):
    with pytest.raises(ValueError, match=message):
        fit(make("rotated", tiny), **options)


def test_a_batch_may_be_the_whole_task(tiny):
    for method in (methods.SGD(), methods.MTL(), methods.OGD()):
        fit(make("permuted", tiny), method, batch_size=60)


def test_tasks_may_look_alike(tiny):
    benchmark = benchmarks.rotated(angles=[10, 10, 10], dataset=tiny)
    for method in (methods.SGD(), methods.MTL()):
        assert fit(benchmark, method)[1].accuracy.shape == (2, 4, 3)


def test_a_model_that_does_not_fit(tiny):
    benchmark = make("rotated", tiny)
    for wrong in ("sgd", methods.SGD):
        with pytest.raises(TypeError, match="method: must be an"):
            fit(benchmark, wrong)
    with pytest.raises(ValueError, match="model: maps 30 inputs to 9 logits where the benchmark has 30 inputs and 10"):
        training.train(benchmark, StackedMLP((30, 9)))
    with pytest.raises(TypeError, match=r"StackedMLP.from_modules"):
        training.train(benchmark, mlp((30, 10)))
