"""Whatever ogd writes it can read: requests drawn by a seed from what the command line takes, odd values among them."""

import json
import random

import pytest

from ogd.lab import catalogue, records
from ogd.lab.cli.arguments import flag
from test_cli import run

COMMON = {
    "--tasks": [1, 2, 3, 300, 301, 10**9],
    "--epochs": [1, 2],
    "--batch-size": [7, 30, 60, 61],
    "--lr": [0.1, 1, "1e-300", "1e-3", "nan"],
    "--momentum": [0, 0.5, 0.999999],
    "--optimizer": ["sgd", "adam"],
    "--hidden": [[1], [6], [5, 4]],
    "--init": list(catalogue.INITS),
    "--seed": [0, 2**63 - 1, 2**63, 10**30],
    "--runs": [1, 2, 3],
    "--curve-every": [1, 2, 5, 18, 19, 10**6, 10**400],
}
OF_BENCHMARK = {
    "rotated": {"--angles": [[0], [-0.0, 1e-300], [0, 1e300], [12.345678901234567, -360], ["nan"]]},
    "permuted": {},
    "split": {"--partition": ["01234/56789", "random:3", "0123456789", "9/8"], "--heads": ["multi", "single"]},
}
NUMBERS = {int: [1, 5, 10**6, 2**63], float: [0, 0.5, "1e-320", 1e5, "inf"]}


def values(option):
    return [*option.choices] or NUMBERS[option.kind]


def drawn(rng):
    """A command line for one method; most of its values are right, so that most are accepted."""
    benchmark, method = rng.choice(list(OF_BENCHMARK)), rng.choice(list(catalogue.METHODS))
    own = {flag(option.name): values(option) for option in catalogue.METHODS[method].options}
    command = ["run", "--benchmark", benchmark, "--method", method]
    for name, choices in {**COMMON, **OF_BENCHMARK[benchmark], **own}.items():
        usual = {"--epochs": 1.0, "--batch-size": 1.0, "--hidden": 1.0, "--runs": 1.0, "--tasks": 0.3}.get(name, 0.3)
        if rng.random() < usual:
            at = min(int(rng.expovariate(0.8)), len(choices) - 1)  # the first ones more often
            value = choices[at] if name in COMMON else rng.choice(choices)
            command += [name, *map(str, value if isinstance(value, list) else [value])]
    return command


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_written_can_be_read(tiny_folder, tmp_path, capsys, monkeypatch, seed):
    rng, accepted = random.Random(seed), 0
    while accepted < 4:
        out = tmp_path / str(rng.random())
        command = [*drawn(rng), "--data", tiny_folder, "--jobs", "1", "--json", "--out", out]
        code, printed, err = run(capsys, *command)
        written = sorted(out.rglob("*.json"))
        if code == 2:
            assert written == [], command
            assert err.startswith("ogd: "), command
            continue
        if code == 1:  # the weights diverged, which is told
            assert "not finite" in err or "diverge" in err, (command, err)
            continue
        accepted += 1
        for path in written:
            assert records.read(path).path(out) == path, command
        with monkeypatch.context() as nothing:
            nothing.setattr("ogd.lab.experiments.dispatch.dispatch", None)  # the second time, nothing is trained
            assert json.loads(run(capsys, *command)[1]) == json.loads(printed), command
        assert run(capsys, "verify", out)[0] == 0, command
