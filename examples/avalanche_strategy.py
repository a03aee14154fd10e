"""Avalanche: the plugin in an ordinary strategy. Needs pip install 'ogd[avalanche]'.

    python examples/avalanche_strategy.py

A task is one experience. docs/frameworks.md says what Avalanche 0.6 needs to run beside today's PyTorch.
"""

import torch
from avalanche.benchmarks import nc_benchmark
from avalanche.training import Naive
from digits import digits
from torch import nn
from torch.utils.data import TensorDataset

import ogd
from ogd.integrations.avalanche import OGDPlugin


def dataset(angle, n, part="train"):
    """As Avalanche wants it: with `targets`."""
    made = TensorDataset(*digits(angle, n, part))
    made.targets = made.tensors[1].tolist()
    return made


def learned_in_turn(benchmark, tests, epochs, protected):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=10,
        train_epochs=epochs,
        plugins=[OGDPlugin(ogd.GradientMemory, per_task=200)] if protected else [],
        evaluator=None,
    )
    scores = []
    for experience in benchmark.train_stream:
        strategy.train(experience)
        scores.append(ogd.forgetting(model, tests))
    return scores[0], scores[-1]


def main(examples=1000, epochs=5):
    tests = {name: dataset(angle, 1000, "test") for name, angle in {"upright": 0, "turned": 60}.items()}
    benchmark = nc_benchmark(
        [dataset(angle, examples) for angle in (0, 60)],
        list(tests.values()),
        n_experiences=2,
        task_labels=False,
        shuffle=False,
        one_dataset_per_exp=True,
        class_ids_from_zero_in_each_exp=True,
    )
    before, plain = learned_in_turn(benchmark, tests, epochs, protected=False)
    _, protected = learned_in_turn(benchmark, tests, epochs, protected=True)
    print("before: the first task is learned; after: both are, without protection; protected: both are, with it")
    print(ogd.compare(before, plain, protected=protected))


if __name__ == "__main__":
    main()
