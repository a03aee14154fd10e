import numpy as np
import pytest
import torch

import reference
from ogd import benchmarks, methods, training
from ogd.models import StackedMLP, mlp
from ogd.training.batches import batches, order
from ogd.training.evaluation import evaluate


class Ridge(methods.Method):
    name = "ridge"

    def penalty(self, model):
        return [0.3 * w.detach() for w in model.parameters()]


class Doubled(methods.Method):
    name = "doubled"

    def transform(self, gradient, model):
        return [(a, 2 * delta) for a, delta in gradient]


class Diary(methods.SGD):
    def __init__(self):
        self.pages = []

    def end_task(self, model, task):
        self.pages.append((task.name, model.weights[0].detach().clone()))


def make(name, dataset, tasks=2):
    options = {"partition": "01234/56789"} if name == "split" else {}
    return getattr(benchmarks, name)(tasks, dataset=dataset, **options)


def fit(benchmark, method=None, runs=2, **options):
    model = StackedMLP((benchmark.inputs, 8, 6, benchmark.outputs), runs=runs, seed=0, dtype=torch.float64)
    options = {"epochs": 2, "batch_size": 7, "lr": 0.5, "progress": False, **options}
    return model, training.train(benchmark, model, method, **options)


def naive(benchmark, method, run, epochs=2, batch_size=7, lr=0.5):
    """One run on an ordinary module: one example at a time, in the order the loop draws."""
    module = StackedMLP((benchmark.inputs, 8, 6, benchmark.outputs), runs=[run], dtype=torch.float64).module(run)
    matrix = []

    def evaluate_all():
        row = []
        for task in benchmark.tasks:
            columns = task.columns([run])
            x = task.test.x if columns is None else task.test.x[:, columns[0]]
            row.append(reference.accuracy(module, x.double(), task.test.y, list(task.classes or range(10))))
        matrix.append(row)

    evaluate_all()
    for t, task in enumerate(benchmark.tasks):
        sources = benchmark.tasks[: t + 1] if method == "mtl" else [task]
        pool = [(source, i) for source in sources for i in range(len(source.train))]
        for epoch in range(epochs):
            index = order(0, [run], f"order/{t}/{epoch}", len(pool), len(task.train))[0].tolist()
            for start in range(0, len(index), batch_size):
                chosen = [pool[i] for i in index[start : start + batch_size]]
                x, y, heads = [], [], []
                for source, i in chosen:
                    columns = source.columns([run])
                    x.append(source.train.x[i] if columns is None else source.train.x[i][columns[0]])
                    y.append(source.train.y[i])
                    heads.append(list(source.classes or range(10)))
                scale = 2 * lr if method == "doubled" else lr
                penalty = 0.3 if method == "ridge" else 0.0
                reference.sgd(module, [(torch.stack(x).double(), torch.stack(y), heads)], scale, penalty)
        evaluate_all()
    return module, np.array(matrix)


@pytest.mark.parametrize("name", ["permuted", "rotated", "split"])
@pytest.mark.parametrize("method", ["sgd", "mtl", "ridge", "doubled"])
def test_the_loop_equals_a_naive_one(tiny, name, method):
    benchmark = make(name, tiny)
    chosen = {"sgd": methods.SGD, "mtl": methods.MTL, "ridge": Ridge, "doubled": Doubled}[method]()
    model, result = fit(benchmark, chosen)
    for run in (0, 1):
        module, matrix = naive(benchmark, method, run)
        for ours, theirs in zip(model.module(run).parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(result.accuracy[run], matrix)


@pytest.mark.parametrize("name", ["permuted", "rotated", "split"])
@pytest.mark.parametrize("method", [methods.SGD, methods.MTL])
def test_run_3_of_10_equals_run_3_alone(tiny, name, method):
    benchmark = make(name, tiny)
    many, all_runs = fit(benchmark, method(), runs=10)
    alone, one_run = fit(benchmark, method(), runs=[3])
    for a, b in zip(many.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a[3], b[0], rtol=1e-12, atol=1e-12)
    assert (all_runs.accuracy[3] == one_run.accuracy[0]).all()


def test_methods_are_the_same_during_the_first_task(tiny):
    matrices = [fit(make("rotated", tiny), method())[1].accuracy for method in (methods.SGD, methods.MTL)]
    assert (matrices[0][:, :2] == matrices[1][:, :2]).all()


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
    index = order(0, [0, 1], "x", 180, 60)
    assert all(len(set(row)) == 60 for row in index.tolist())
    seen = [batch.target.argmax(-1) for batch in batches(tasks, index, [None] * 3, 10, 7)]
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
        assert found[r, 0] == reference.accuracy(model.module(run), x, task.test.y, list(range(10)))


def test_divergence_stops_and_says_where(tiny):
    with pytest.raises(training.Diverged, match=r"run 0, 1 .* sgd at lr 1e\+200, in task 1/2, epoch [12]/2"):
        fit(make("rotated", tiny), lr=1e200, epochs=2)


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
    ],
)
def test_bad_arguments_are_named(tiny, options, message):
    with pytest.raises(ValueError, match=message):
        fit(make("rotated", tiny), **options)


def test_a_model_that_does_not_fit(tiny):
    benchmark = make("rotated", tiny)
    with pytest.raises(ValueError, match="model: maps 30 inputs to 9 logits where the benchmark has 30 inputs and 10"):
        training.train(benchmark, StackedMLP((30, 9)))
    with pytest.raises(TypeError, match=r"StackedMLP.from_modules"):
        training.train(benchmark, mlp((30, 10)))
