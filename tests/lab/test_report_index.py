"""The index of a folder of records: what every setting is for, and how many runs there are."""

from pathlib import Path

import pytest

from made_records import keep, made, make
from ogd.lab.experiments import resolve
from ogd.lab.experiments.paper import INIT
from ogd.lab.reporting.index import index, setting

RESULTS = Path(__file__).parents[2] / "results"


def test_the_index_of_the_results_is_what_the_records_say():
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert text == index(RESULTS), "`python docs/refresh.py` writes it"


def test_a_folder_is_listed_once_with_all_that_it_is_for(tmp_path, mnist):
    make(tmp_path, ["rotated"])
    make(tmp_path, ["every"], full=True, runs=1)
    keep(made(resolve("rotated", "sgd", mnist, seed=7), 3), tmp_path)
    (tmp_path / "tuning").mkdir()
    (tmp_path / "tuning" / "ewc-rotated.json").write_text("{}")
    text = index(tmp_path)
    assert text == index(tmp_path)
    lines = {line.split("]")[0][3:]: line for line in text.splitlines() if line.startswith("| [")}
    assert set(lines) == {path.name for path in tmp_path.iterdir()} - {"tuning"}
    quickly = resolve("rotated", "ogd", mnist, epochs=1, lr=5e-3, init=INIT)
    uses = (
        "worlds: OGD; rotated (quick): OGD; every (quick): OGD, every step; init, rotated (quick): OGD; "
        "which (quick): OGD; worlds (quick): OGD"
    )
    assert f" | {uses} | OGD | {setting(quickly)} | 2 |" in lines[f"rotated-ogd-{quickly.key}"]
    full = resolve("rotated", "sgd", mnist, init=INIT)
    uses = "rotated: SGD; every: SGD; init, rotated: SGD; which: SGD; gradients-rotated: SGD; gradients-newest: SGD"
    assert f" | {uses} | SGD |" in lines[f"rotated-sgd-{full.key}"]
    other = text[text.index("## Of other settings") :]
    assert " | SGD | rotated 0° 10° 20° 30° 40°, seed 7 | 1 |" in other
    assert "`tuning/ewc-rotated.json`." in other


@pytest.mark.parametrize(
    ("benchmark", "method", "settings", "said"),
    [
        ("permuted", "mtl", {"tasks": 3, "momentum": 0.5}, "permuted 3 tasks, momentum 0.5"),
        ("split", "sgd", {"partition": "random:1"}, "split 68/79/35/04/12"),
        ("split", "sgd", {"heads": "single", "hidden": [50]}, "split 01/23/45/67/89, heads single, hidden 50"),
        ("rotated", "ewc", {"angles": (0, 7.5), "init": "he"}, "rotated 0° 7.5°, init he, ewc_lambda 100"),
        ("permuted", "sgd", {"epochs": 1, "lr": 5e-3}, "permuted 5 tasks, epochs 1, lr 0.005"),
        ("rotated", "ogd", {"every": 50, "tasks": 1}, "rotated 0°, projection explicit, every 50"),
    ],
)
def test_a_setting_is_told_by_what_differs_from_the_defaults(mnist, benchmark, method, settings, said):
    assert setting(resolve(benchmark, method, mnist, **settings)) == said
