import subprocess
import sys

import pytest
import scipy.ndimage
import torch
from torch.utils.data import TensorDataset

from ogd.lab import benchmarks
from ogd.lab.benchmarks import partition as partitions
from ogd.lab.benchmarks import rules
from ogd.lab.benchmarks.batches import draw
from ogd.lab.benchmarks.task import make_benchmark
from ogd.lab.experiments import resolve


@pytest.mark.parametrize("degrees", [10, -25, 40, 90, 180, 359.5])
@pytest.mark.parametrize("shape", [(28, 28), (9, 14)])
def test_rotation_equals_scipy(degrees, shape):
    images = torch.rand(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = scipy.ndimage.rotate(
        images.numpy(), degrees, axes=(1, 2), reshape=False, order=1, mode="grid-constant", cval=0
    )
    # scipy turns the plane (rows, columns), with rows downwards: its positive angle is counter-clockwise too
    torch.testing.assert_close(benchmarks.rotate(images, degrees), torch.from_numpy(expected), atol=1e-9, rtol=0)


def test_rotation_by_zero_and_a_full_turn_is_none():
    images = torch.rand(2, 5, 5)
    assert benchmarks.rotate(images, 0) is images
    assert benchmarks.rotate(images, -720) is images


def test_permutations_are_each_run_s_own(tiny):
    first, second = benchmarks.permuted(2, dataset=tiny).tasks
    columns = first.columns([0, 1, 2])
    assert columns.sort(1).values.equal(torch.arange(30).expand(3, 30))
    assert not columns[0].equal(columns[1])
    assert first.columns([2])[0].equal(columns[2])
    assert not second.columns([0])[0].equal(columns[0])
    assert not benchmarks.permuted(2, seed=1, dataset=tiny).tasks[0].columns([0])[0].equal(columns[0])
    assert first.train.x is second.train.x


def test_draw_permutes_by_index(tiny):
    task = benchmarks.permuted(1, dataset=tiny).tasks[0]
    index, columns = torch.tensor([[3, 4], [5, 3]]), task.columns([0, 7])
    x = draw(task.train, index, columns, torch.empty(10, 1, 6, 5))
    for r in range(2):
        for i in range(2):
            assert x[r, i].equal(task.train.x[index[r, i]].flatten()[columns[r]].view(1, 6, 5))


@pytest.mark.parametrize(
    ("name", "settings"), [("permuted", {}), ("rotated", {"angles": (90, 0)}), ("split", {"batch_size": 5})]
)
def test_images_can_be_left_out_and_standardised(tiny, name, settings):
    request = resolve(name, "sgd", tiny, scale="standard", left_out=20, **settings)
    assert request.settings == {"scale": "standard", "left_out": 20}
    assert resolve(name, "sgd", tiny, scale="unit", left_out=0, **settings).settings == {}
    made, plain = make_benchmark(request, tiny), make_benchmark(resolve(name, "sgd", tiny, **settings), tiny)
    assert tuple(len(task.train) for task in made.tasks) == rules.rules_of(name).sizes(request, tiny)
    assert rules.rules_of(name).first(request) != rules.rules_of(name).first(resolve(name, "sgd", tiny, **settings))
    kept = torch.from_numpy(tiny.train_images[20:] / 255)
    for ours, all_of_it in zip(made.tasks, plain.tasks, strict=True):
        expected = (all_of_it.test.x - kept.mean()) / kept.std()
        torch.testing.assert_close(ours.test.x, expected, check_dtype=False, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="left_out: 60 leaves none of the 60 training images"):
        resolve(name, "sgd", tiny, left_out=60, **settings)


def test_split_deals_out_the_classes(tiny):
    benchmark = benchmarks.split(partition="09/18/27/36/45", dataset=tiny)
    assert [task.classes for task in benchmark.tasks] == [(0, 9), (1, 8), (2, 7), (3, 6), (4, 5)]
    assert sum(len(task.train) for task in benchmark.tasks) == 60
    assert set(benchmark.tasks[1].test.y.tolist()) == {1, 8}
    assert all(task.classes is None for task in benchmarks.split(5, heads="single", dataset=tiny).tasks)


def test_a_random_partition_is_named_by_its_seed(tiny):
    one = benchmarks.split(2, partition="random:1", dataset=tiny)
    assert [task.name for task in one.tasks] == [
        task.name for task in benchmarks.split(2, partition="random:1", dataset=tiny).tasks
    ]
    assert one.tasks[0].name != benchmarks.split(2, partition="random:2", dataset=tiny).tasks[0].name
    assert sorted(one.tasks[0].name + one.tasks[1].name) == list("0123456789")


def test_own_takes_datasets_and_tensors():
    x, y = torch.rand(12, 2, 3), torch.arange(12) % 4
    benchmark = benchmarks.from_datasets(
        [((x, y), (x, y)), (TensorDataset(x, y), TensorDataset(x, y))], classes=[None, [0, 1, 2, 3, 4]]
    )
    assert (benchmark.inputs, benchmark.outputs, len(benchmark)) == (6, 5, 2)
    assert benchmark.tasks[0].train.x.equal(benchmark.tasks[1].train.x)


def test_partitions_read_as_they_are_written():
    for partition in [((0, 1), (2, 3)), ((0, 1, 2), (10,)), (tuple(range(10)), (10, 11))]:
        assert partitions.parse(partitions.name(partition), range(12), 2) == partition


X, Y = torch.rand(4, 3), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("tasks", "options", "message"),
    [
        ([], {}, "tasks: give at least one"),
        ([(X, Y)], {}, "tasks: task 1 is not a .train, test. pair"),
        ([((X, Y), (X[:, :2], Y))], {}, "tasks: all inputs must be of one shape"),
        ([((X, Y[:2]), (X, Y))], {}, "tasks: task 1's train data need one label"),
        ([((X, Y), (X, Y.float()))], {}, "tasks: task 1's test labels must be whole"),
        ([((X, Y - 1), (X, Y))], {}, "tasks: task 1's train labels"),
        ([((X[:, 0], Y), (X, Y))], {}, "tasks: task 1's train data need one label"),
        ([((X.tolist(), Y), (X, Y))], {}, "tasks: task 1's train data must be tensors"),
        ([((X, Y), (X, Y))], {"classes": [[-1, 0, 1]]}, "classes: must be whole numbers from 0"),
        ([((X / 0, Y), (X, Y))], {}, "tasks: task 1's train inputs are not all finite"),
        ([((X[:0], Y[:0]), (X, Y))], {}, "tasks: task 1's train"),
        ([(TensorDataset(X[:0], Y[:0]), (X, Y))], {}, "tasks: task 1's train data are empty"),
        ([((X, Y), (X, Y))], {"names": ["a", "b"]}, "names: 2 of them do not fit 1 task"),
        ([((X, Y), (X, Y))], {"classes": [[0, 2]]}, "classes: task 1 has labels outside its head"),
    ],
)
def test_own_says_what_is_wrong(tasks, options, message):
    with pytest.raises(ValueError, match=message):
        benchmarks.from_datasets(tasks, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda d: benchmarks.permuted(0, dataset=d), "tasks: must be at least 1"),
        (lambda d: benchmarks.permuted(None, dataset=d), "tasks: must be a whole number"),
        (lambda d: benchmarks.permuted(2.0, dataset=d), "tasks: must be a whole number"),
        (lambda d: benchmarks.rotate(torch.rand(5, 5), 10), "images: must be"),
        (lambda d: benchmarks.rotate(torch.rand(1, 5, 5), float("nan")), "degrees: must be"),
        (lambda d: benchmarks.split(6, dataset=d), "tasks: 10 classes over 6 tasks leave a head with a single class"),
        (lambda d: benchmarks.rotated(0, dataset=d), "tasks: must be at least 1"),
        (lambda d: benchmarks.rotated(3, angles=[0, 10], dataset=d), "angles: 2 angles do not make 3 tasks"),
        (lambda d: benchmarks.rotated(angles=[], dataset=d), "angles: give at least one"),
        (lambda d: benchmarks.rotated(angles=[float("nan")], dataset=d), "angles: give at least one finite"),
        (lambda d: benchmarks.split(partition="01/12", dataset=d), "partition: 01/12 repeats class 1"),
        (lambda d: benchmarks.split(partition="01234/5678", dataset=d), "partition: .* misses class 9"),
        (lambda d: benchmarks.split(partition="0,1/2,3,4,5,6,7,8,9,11", dataset=d), "has unknown class 11"),
        (lambda d: benchmarks.split(partition="0/123456789", dataset=d), "each task needs at least 2 classes"),
        (lambda d: benchmarks.split(partition="01//23456789", dataset=d), "each task needs at least 2"),
        (lambda d: benchmarks.split(partition="random:x", dataset=d), "partition: 'random:x' needs a whole number"),
        (lambda d: benchmarks.split(11, dataset=d), "tasks: 10 classes cannot be divided among 11"),
        (lambda d: benchmarks.split(3, partition="01234/56789", dataset=d), "partition: .* makes 2 tasks, not 3"),
        (lambda d: benchmarks.split(2, heads="many", dataset=d), "heads: there is no 'many'"),
    ],
)
def test_bad_arguments_are_named(tiny, make, message):
    with pytest.raises(ValueError, match=message):
        make(tiny)


def test_rules_need_no_torch_and_no_module_hides_a_benchmark():
    script = """
import sys
from ogd.lab import benchmarks
from ogd.lab.benchmarks import partition, rules
from ogd.lab.experiments import resolve, plan
assert "torch" not in sys.modules
from ogd.lab.benchmarks import datasets, permuting, rotating, splitting
for name in benchmarks.__all__:
    assert callable(getattr(benchmarks, name)), name
assert set(benchmarks.__all__) <= set(dir(benchmarks))
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = benchmarks.nonsense


def test_rules_and_benchmarks_agree(tiny):
    for name, settings in [
        ("permuted", {"tasks": 3}),
        ("rotated", {"angles": [0, 22.5]}),
        ("split", {"partition": "012/3456789"}),
        ("split", {"tasks": 3, "heads": "single"}),
    ]:
        request = resolve(name, "sgd", tiny, **settings)
        made = make_benchmark(request, tiny)
        assert benchmarks.task_names(request) == tuple(task.name for task in made.tasks)
        sizes = rules.rules_of(name).sizes(request, tiny)
        assert sizes == tuple(len(task.train) for task in made.tasks)


def test_settings_of_another_benchmark_are_refused(tiny):
    with pytest.raises(ValueError, match="angles: is for benchmark 'rotated', not 'split'"):
        resolve("split", "sgd", tiny, angles=[0, 10])
    with pytest.raises(ValueError, match="colour: is no option of ogd, which has candidates, choose, directions, "):
        resolve("split", "ogd", tiny, colour="red")
    with pytest.raises(ValueError, match="alpha: is no option of sgd, which has none"):
        resolve("split", "sgd", tiny, alpha=1.0)


MEASURE = """
import resource, torch, ogd
from ogd.lab.methods import FinishedTask
from ogd.lab.optimizers import SGD
from ogd.lab.benchmarks.batches import chunks
from ogd.seeds import draw
from ogd.lab.training.evaluation import evaluate
from ogd.lab.training.loop import take_step
benchmark = ogd.lab.benchmarks.rotated(5)
model, none = ogd.lab.models.StackedMLP(runs=10), [None] * 5
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
index = draw(0, model.runs, "x", 300_000, 60_000)
next(chunks(benchmark.tasks, index, none, 10, 10))
evaluate(model, benchmark.tasks, 10)
print(peak())
method = ogd.lab.methods.OGD()
method.begin(model, 0)
for number, task in enumerate(benchmark.tasks[:4], 1):
    method.end_task(FinishedTask(task, model, number, 0, 10, 0))
optimizer = SGD(model, 1e-3)
constraint = method.constraint(optimizer)
chunk = next(chunks(benchmark.tasks[4:], index[:, :160] % 60_000, none, 10, 10))
constraint.foresee(chunk.x)
for batch in chunk.split(10):
    take_step(optimizer, method, constraint, batch, 0)
constraint.settle()
method.end_task(FinishedTask(benchmark.tasks[4], model, 5, 0, 10, 0))
evaluate(model, benchmark.tasks, 10)
print(peak())
"""


def test_memory_of_five_tasks_and_ten_runs():
    """The benchmark under 2 GiB; with OGD, from its first task to the last one's 1,000 directions, under 3."""
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    plain, ogd = map(float, done.stdout.split())
    assert plain < 2.0
    assert ogd < 3.0
