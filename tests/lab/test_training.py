import numpy as np
import pytest
import torch
from torch import nn

import naive_lab
from ogd.lab import benchmarks, methods, training
from ogd.lab.models import StackedMLP, mlp
from ogd.lab.training.evaluation import evaluate
from small_lab import fit, make, small_cnn


class Doubled(methods.Method):
    name = "doubled"

    def transform(self, gradient, model, step):
        return gradient.plus(gradient)


class Diary(methods.SGD):
    def __init__(self):
        self.pages = []

    def end_task(self, finished):
        weight = finished.model.params["0.weight"]
        self.pages.append((finished.task.name, finished.number, finished.step, weight.detach().clone()))


def test_transform_is_used(tiny):
    benchmark = make("rotated", tiny)
    doubled, _ = fit(benchmark, Doubled(), lr=0.25)
    assert doubled.weights[0].allclose(fit(benchmark, lr=0.5)[0].weights[0])


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
    return fit(benchmarks.Benchmark("split", (task,), 10), epochs=1)


def test_curves_hold_the_tasks_seen(tiny):
    benchmark = make("rotated", tiny)
    _, result = fit(benchmark, curve_every=6)  # 9 steps per epoch, 18 per task
    assert result.curve_steps == [6, 12, 18, 24, 30, 36]
    assert np.isnan(result.curve[:, :3, 1]).all()
    assert not np.isnan(result.curve[:, 3:]).any()
    assert (result.curve[:, 2, 0] == result.accuracy[:, 1, 0]).all()
    assert (result.curve[:, 5] == result.accuracy[:, 2]).all()
    assert fit(benchmark)[1].curve.shape == (2, 0, 2)


def test_end_task_is_called_with_the_trained_model(tiny):
    diary = Diary()
    model, _ = fit(make("rotated", tiny), diary)
    assert [page[:3] for page in diary.pages] == [("0°", 1, 18), ("10°", 2, 36)]
    assert diary.pages[1][3].equal(model.weights[0])
    assert not diary.pages[0][3].equal(model.weights[0])


def test_evaluation_is_in_the_model_s_precision_and_any_batch(tiny, monkeypatch):
    task = make("permuted", tiny).tasks[1]
    model = StackedMLP((30, 8, 10), runs=[4, 2])
    monkeypatch.setattr("ogd.lab.training.evaluation.BATCH", 7)
    found = evaluate(model, [task], 10)
    for r, run in enumerate((4, 2)):
        x = torch.stack([naive_lab.ordered(task, one, run) for one in task.test.x])
        assert found[r, 0] == naive_lab.accuracy(model.module(run), x, task.test.y, list(range(10)))


def test_divergence_stops_and_says_where(tiny):
    with pytest.raises(training.Diverged, match=r"run 0, 1 .* sgd at lr 1e\+200, task 1/2, epoch [12]/2, by step \d+"):
        fit(make("rotated", tiny), lr=1e200, epochs=2)
    with pytest.raises(
        training.Diverged, match=r"run 1 .* ewc \(λ = 1, 1e\+09\) at lr 0.5, task 2/2, epoch [12]/2, by step"
    ):
        fit(make("rotated", tiny), methods.EWC([1.0, 1e9]))


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
        ({"lr": "x"}, "lr: must be a positive number, not 'x'"),
        ({"optimizer": "adamw"}, "optimizer: there is no 'adamw'; did you mean 'adam'"),
        ({"optimizer": "adam", "momentum": 0.5}, "momentum: is for optimizer 'sgd'"),
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
    with pytest.raises(ValueError, match="model: has 9 logits where the benchmark has 10 classes"):
        training.train(benchmark, StackedMLP((30, 9)))
    with pytest.raises(ValueError, match=r"model: cannot take inputs of shape \(1, 6, 5\)"):
        training.train(benchmark, StackedMLP((29, 10)))
    with pytest.raises(TypeError, match=r"StackedModules\(\[module\]\) makes a stack of one"):
        training.train(benchmark, mlp((30, 10)))
    with pytest.raises(ValueError, match="runs: a stack already has its runs"):
        training.train(benchmark, StackedMLP((30, 10)), runs=3)


@pytest.mark.parametrize("method", [methods.SGD(), methods.MTL(), methods.ER(), methods.OGD(20), methods.EWC()])
def test_inputs_may_be_numbers_of_words_and_parameters_frozen(method):
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)
            self.scale = nn.Parameter(torch.tensor(2.0), requires_grad=False)

        def forward(self, x):
            return self.head(self.scale * self.words(x).mean(1))

    g = torch.Generator().manual_seed(0)
    x, y = torch.randint(9, (40, 5), generator=g), torch.arange(40) % 3
    benchmark = benchmarks.from_datasets([((x, y), (x, y)), (((x + 1) % 9, y), ((x + 1) % 9, y))])
    result = training.train(benchmark, Bag, method, runs=2, epochs=3, lr=0.3, progress=False)
    assert result.accuracy[:, 1, 0].mean() > 0.4
    assert result.model.module(0).scale == 2


def test_a_function_that_makes_a_module(tiny):
    result = training.train(make("rotated", tiny), small_cnn, runs=3, epochs=1, lr=0.1, progress=False)
    assert result.accuracy.shape == (3, 3, 2)
    assert training.train(make("rotated", tiny), small_cnn, epochs=1, progress=False).accuracy.shape == (1, 3, 2)
    alone = training.train(make("rotated", tiny), small_cnn, runs=[2], epochs=1, lr=0.1, progress=False)
    for many, one in zip(result.model.module(2).parameters(), alone.model.module(2).parameters(), strict=True):
        assert many.equal(one)
