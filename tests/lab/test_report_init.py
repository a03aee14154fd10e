"""The published tables with every kind of initial weights: what `ogd reproduce init` runs, and what is shown of it."""

import csv
import io
import math
import re
import sys
from dataclasses import replace

import pytest

from made_records import keep, made
from ogd.lab.catalogue import INITS
from ogd.lab.experiments import EXPERIMENTS, Cell, quick, runner
from ogd.lab.experiments.experiment import choose
from ogd.lab.experiments.paper import INIT
from ogd.lab.experiments.runs import requests_of
from ogd.lab.reporting import formats
from ogd.lab.reporting.cells import Entry, Tally
from ogd.lab.reporting.choices import CHOICES
from ogd.lab.reporting.page import page, scores
from ogd.lab.reporting.report import comparisons

INITIAL = EXPERIMENTS["init"]
COMMON, OTHER, RARE = sorted(INITS, key=lambda init: init != INIT)
PAPER = [e for e in EXPERIMENTS.values() if e.where != "Ours"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, mnist):
    """Quick records of Table 2: all with two kinds of weights, one run of one method with the third."""
    folder = tmp_path_factory.mktemp("records")
    (versions,) = (v for v in quick(INITIAL).parts if v[0].name == "rotated")
    for version in versions:
        for request in (request for row in version.rows for request in requests_of(row, mnist)):
            runs = 2 if request.init != RARE else request.method == "sgd"
            for run in range(runs):
                keep(made(request, run), folder)
    return folder


@pytest.fixture(scope="module")
def comparison(folder):
    return next(one for one in comparisons(folder) if one.experiment.name == "init")


def test_one_constant_decides_for_the_whole_reproduction():
    own = [e for e in EXPERIMENTS.values() if not e.references and not e.name.startswith("widths")]
    settings = [setting for e in own for row in e.rows for setting in row.settings]
    assert {setting["init"] for setting in settings} == {INIT}
    assert f"--init {INIT}" in dict(CHOICES)["initial weights"]
    assert f"take `{INIT}`" in INITIAL.note


def test_it_asks_for_every_published_row_with_every_kind_of_weights(mnist, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        runner, "run", lambda wanted, *_: asked.extend(wanted) or runner.Outcome([[]] * len(wanted), [])
    )
    (found,), _ = runner.reproduce(choose(["init"], quickly=False, runs=None), mnist, tmp_path)
    rows = [(e, row) for e in PAPER for row in e.rows if row.published]
    for init in INITS:
        wanted = {
            (request.key, e.runs)
            for e, row in rows
            for request in requests_of(replace(row, settings=tuple({**s, "init": init} for s in row.settings)), mnist)
        }
        assert {(request.key, runs) for request, runs in asked if request.init == init} == wanted
    assert found.share == 0
    (fewer,) = choose(["init"], quickly=True, runs=3)
    assert {version.runs for version in fewer.trained} == {3}
    assert {s["epochs"] for version in fewer.trained for row in version.rows for s in row.settings} == {1}


def test_every_table_is_counted_for_every_kind_of_weights(folder, comparison):
    assert comparison.columns == tuple(INITS)
    assert [line.label for line in comparison.lines][-2:] == ["Table 4, variants-permuted", "All tables"]
    assert {len(tally.cells) for tally in comparison.lines[-1].tallies} == {168}
    rotated = dict(zip(INITS, comparison.lines[1].tallies, strict=True))
    (score,) = (s for s in scores(comparisons(folder)) if s.comparison.experiment.name == "rotated")
    assert rotated[INIT] == score.tally
    assert [rotated[init].missing for init in (COMMON, OTHER, RARE)] == [0, 0, 20]
    assert [rotated[init].few for init in (COMMON, OTHER, RARE)] == [0, 0, 5]


def test_what_is_missing_is_said(folder, comparison):
    (said,) = comparison.missing
    assert said.startswith("All tables: ")
    both = [init for init in INITS if init != RARE]
    assert f"143 of 168 cells not run yet at {', '.join(both)}" in said
    assert f"163 of 168 cells not run yet at {RARE}; 5 of 168 cells from fewer runs at {RARE}" in said
    for text in (formats.table(comparison).markdown(), formats.latex(comparison)):
        assert said in text


def test_it_is_a_table_in_every_form(folder, comparison):
    rotated = dict(zip(INITS, comparison.lines[1].tallies, strict=True))
    cells = {init: formats.counts(tally) for init, tally in rotated.items()}
    assert cells[COMMON] == " / ".join(str(rotated[COMMON].counts[name]) for name in ("agrees", "better", "short"))
    assert cells[RARE].endswith(" (20 not run)")
    text = formats.table(comparison).markdown()
    assert f"| Table 2, rotated | agrees / better / short | {' | '.join(cells.values())} |" in text
    assert "| Table 3, split | agrees / better / short | – | – | – |" in text
    assert f"Table 2, rotated & agrees / better / short & {' & '.join(cells.values())} \\\\" in formats.latex(
        comparison
    )
    lines = {(row["row"], row["column"]): row for row in csv.DictReader(io.StringIO(formats.tidy(comparison)))}
    assert len(lines) == 9 * 3
    assert lines["Table 2, rotated", OTHER]["agrees"] == str(rotated[OTHER].counts["agrees"])
    assert lines["Table 2, rotated", OTHER]["agrees_strict"] == str(rotated[OTHER].strict_counts["agrees"])
    assert lines["Table 3, split", RARE]["mean_absolute_difference"] == ""
    strictly = [formats.counts(tally, strict=True) for tally in rotated.values()]
    assert f"|  | by the strict count | {' | '.join(strictly)} |" in text


def test_on_the_page_it_is_a_line_until_half_of_it_is_run(folder, comparison, monkeypatch):
    html = page([comparison], {}, folder)
    assert '<table id="table-init"' not in html
    line = re.search(r"<li>([^<]*) \((\d+) % of its settings are run\): <code>(.*?)</code></li>", html)
    assert line.groups() == (
        comparison.title,
        f"{100 * comparison.found.share:.0f}",
        f"ogd reproduce init --quick --out {folder.name}",
    )
    monkeypatch.setattr(sys.modules["ogd.lab.reporting.compare"], "WHOLE", comparison.found.share)
    html = page([comparison], {}, folder)
    assert '<table id="table-init" class="sorts grouped">' in html
    assert all(text in html for text in ("mean |d|", *comparison.missing))


def test_a_tally_counts_what_was_run():
    cells = (Entry((90.0, 91.0), 2, Cell(90.0, 1.0)), Entry((80.0,), 2, Cell(84.5, 1.0)), Entry((), 2, Cell(1.0, 1.0)))
    tally = Tally(cells)
    assert tally.counts == {"agrees": 1, "short": 1}
    assert (tally.missing, tally.few, tally.distance) == (1, 1, 2.5)
    assert math.isnan(Tally(()).distance)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": ("one",)}, "parts: 'permuted' has 3 versions, not 1"),
        ({"value": "final"}, "parts: are for a table of value 'agreement'"),
        ({"parts": ()}, "parts: are for a table of value 'agreement'"),
        ({"rows": EXPERIMENTS["rotated"].rows}, "parts: are for a table of value 'agreement'"),
    ],
)
def test_parts_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(INITIAL, **change)
