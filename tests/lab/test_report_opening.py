"""What the page opens with, and the runs that belong to no table: numbers checked against the records themselves."""

import re
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from made_records import keep, made, make
from ogd.lab import cli
from ogd.lab.catalogue import METHODS, Look
from ogd.lab.experiments import EXPERIMENTS, resolve
from ogd.lab.reporting import html_figures
from ogd.lab.reporting import page_opening as opening
from ogd.lab.reporting.accuracy_plots import spread
from ogd.lab.reporting.cells import Tally
from ogd.lab.reporting.figures import RINGS, draw
from ogd.lab.reporting.html_figures import css_colour, swatches
from ogd.lab.reporting.other_runs import others
from ogd.lab.reporting.page import in_order, page, scores
from ogd.lab.reporting.report import comparisons
from ogd.lab.reporting.tables import mean_std


def run_of(folder, mnist, benchmark, method, runs=2, **setting):
    """Put runs of `ogd run` into a folder."""
    request = resolve(benchmark, method, mnist, **setting)
    for run in range(runs):
        keep(made(request, run), folder)
    return request


def report(folder):
    cli.main(["report", str(folder)])
    return (folder / "report" / "index.html").read_text(encoding="utf-8")


@pytest.fixture
def own(tmp_path, mnist):
    """A comparison of one's own, and nothing of the paper."""
    for method in ("ogd", "sgd", "er"):
        run_of(tmp_path, mnist, "permuted", method, tasks=4, epochs=2)
    run_of(tmp_path, mnist, "split", "ogd", 1, epochs=2, per_task=50)
    return tmp_path


def test_one_s_own_comparison_is_on_the_page(own, capsys):
    html = report(own)
    rows = re.findall(r"<tr data-method=.*?</tr>", html[html.index('id="table-own"') :], re.DOTALL)
    texts = [" ".join(re.sub(r"<[^>]*>", " ", row).split()) for row in rows]
    found = others(own, []).settings
    assert [one.method.label for one in found] == ["ER", "OGD", "SGD", "OGD"]  # best first, benchmark by benchmark
    averages = [mean_std([100 * fmean(record.accuracy[-1]) for record in one.records]) for one in found]
    assert len(texts) == 4
    assert texts[0].startswith("ER permuted 4 tasks epochs 2 2 ")
    for text, average in zip(texts, averages, strict=True):
        assert f" {average} " in text
    assert "epochs 2, per_task 50" in texts[3]
    assert "reproduced" not in html
    assert html.index('id="own"') < html.index('id="commands"')


def test_what_a_table_shows_is_not_listed_again(tmp_path, mnist, capsys):
    make(tmp_path, ["rotated"], full=True, runs=1)
    assert others(tmp_path, [one.found for one in comparisons(tmp_path)]).settings == ()
    request = run_of(tmp_path, mnist, "rotated", "sgd", seed=3)
    (found,) = others(tmp_path, [one.found for one in comparisons(tmp_path)]).settings
    assert (found.request, found.settings, len(found.records)) == (request, "seed 3", 2)
    html = report(tmp_path)
    assert html.index('id="tables"') < html.index('id="own"')


def test_a_setting_that_a_table_shares_is_still_listed(tmp_path, mnist):
    request = run_of(tmp_path, mnist, "rotated", "sgd")  # also a row of `init`
    found = comparisons(tmp_path)
    assert {one.experiment.name for one in found if one.found.share} == {"init"}
    assert [one.request for one in others(tmp_path, [one.found for one in found]).settings] == [request]


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(own, mnist, capsys):
    request = run_of(own, mnist, "rotated", "agem", seed=9)
    path = made(request, 0).path(own)
    path.write_text("{}")
    html = report(own)
    assert path.parent.name in html[html.index("cannot be read") :][:200]
    assert 'id="table-own"' in html


def test_the_three_numbers_are_the_records(tmp_path):
    make(tmp_path, ["permuted", "rotated"])
    found = in_order(comparisons(tmp_path))
    total = Tally(tuple(cell for score in scores(found) for cell in score.tally.cells))
    there = [one for one in found if one.found.share]
    begins = opening.opening(there, ())
    met, apart, kept = opening.facts(total, begins)
    assert met.number == f"{total.counts['agrees'] + total.counts['better']} of {5 * 5 * 2}"
    strictly = total.strict_counts["agrees"] + total.strict_counts["better"]
    assert met.words.endswith(f"; {strictly} by the strict count")
    assert apart.number == f"{total.distance:.1f} points"
    ends = {line.label: line.entries[0].mean for line in there[0].lines}
    assert begins.anchor == "permuted"
    assert kept.number == f"{ends['OGD']:.0f}\u00a0%"
    rivals = {label: end for label, end in ends.items() if label not in ("MTL", "OGD")}
    for label in (min(rivals, key=rivals.get), max(rivals, key=rivals.get)):
        assert f"{rivals[label]:.0f}\u00a0% ({label})" in kept.words
    assert "MTL" not in kept.words  # an upper bound is no rival


def test_without_the_paper_it_opens_with_the_methods_run_on_one_benchmark(own):
    settings = others(own, []).settings
    begins = opening.opening([], settings)
    assert (begins.title, begins.anchor, begins.tasks) == ("permuted 4 tasks", "own", 4)
    assert {trace.method for trace in begins.traces} == {"ogd", "sgd", "er"}
    kept, lost, most = opening.facts(Tally(()), begins)
    best, worst = (next(trace for trace in begins.traces if trace.method == name) for name in ("er", "sgd"))
    assert kept.words.startswith("on task 1 after 4 tasks with ER; the others keep ")
    assert lost.number == f"{best.mean[0] - best.mean[-1]:.1f} points"
    assert most.number == f"{worst.mean[0] - worst.mean[-1]:.1f} points"
    assert opening.opening([], settings[3:]).tasks == 5  # a single method
    assert opening.opening([], ()) is None


def test_a_method_of_a_plugin_is_not_needed_for_the_rest(own, mnist, monkeypatch):
    monkeypatch.delitem(METHODS, "er")
    found = others(own, [])
    assert {one.request.method for one in found.settings} == {"ogd", "sgd"}
    assert [name.rpartition("-")[0] for name in found.unreadable] == ["permuted-er"]


@pytest.mark.parametrize("name", ["curves", "angles", "partitions", "lambda"])
def test_areas_cover_the_panels_and_say_what_the_table_says(tmp_path, name):
    make(tmp_path, [name])
    comparison = next(one for one in comparisons(tmp_path) if one.experiment.name == name)
    figure = draw(comparison)
    areas = html_figures.spots(figure, comparison)
    width, height = 72 * figure.get_size_inches()
    panels = [axes.get_window_extent() for axes in figure.axes]
    covered = sum(area.width * area.height for area in areas)
    assert covered == pytest.approx(sum(box.width * box.height for box in panels) * (72 / figure.dpi) ** 2, rel=0.01)
    assert all(0 <= area.x <= area.x + area.width <= width for area in areas)
    assert all(0 <= area.y <= area.y + area.height <= height for area in areas)
    if name != "curves":
        assert [area.text.partition("\n")[0] for area in areas] == list(comparison.columns)
        for line in comparison.lines:
            for entry, area in zip(line.entries, areas, strict=True):
                assert f"\n{line.label}: {mean_std(entry.runs)}\n" in f"{area.text}\n"


def test_areas_of_a_curve_go_from_left_to_right(tmp_path):
    make(tmp_path, ["curves"])
    comparison = next(one for one in comparisons(tmp_path) if one.experiment.name == "curves")
    areas = html_figures.spots(draw(comparison), comparison)
    of_task = [area for area in areas if area.text.startswith("task 1 ")]
    assert 30 < len(of_task) <= html_figures.MOST
    assert [area.x for area in of_task] == sorted(area.x for area in of_task)
    assert all(line.label in of_task[-1].text for line in comparison.lines)


def test_labels_stand_apart_and_inside():
    rng = np.random.default_rng(0)
    for _ in range(50):
        ends = rng.uniform(60, 100, rng.integers(1, 10))
        places = np.array(spread(ends.tolist(), 60.0, 100.0))
        assert (np.diff(np.sort(places)) >= 0.055 * 40 - 1e-9).all()
        assert places.max() <= 100
        assert (np.argsort(places) == np.argsort(ends)).all()


def test_a_page_without_pictures_is_still_a_page(own):
    assert "Learning one task after another" in page([], {}, own, others(own, []))


def test_the_legend_has_every_line_and_the_rings(tmp_path):
    names = ["lambda", "angles"]
    make(tmp_path, names)
    found = {one.experiment.name: swatches(one) for one in comparisons(tmp_path) if one.experiment.name in names}
    assert [entry.label for entry in found["lambda"]] == [row.label for row in EXPERIMENTS["lambda"].rows] + [RINGS]
    assert [entry.method for entry in found["angles"]] == [row.method for row in EXPERIMENTS["angles"].rows]
    for entry, row in zip(found["angles"], EXPERIMENTS["angles"].rows, strict=True):
        assert f'fill="{css_colour(METHODS[row.method].look.colour)}"' in entry.picture


@pytest.mark.parametrize(
    ("dashes", "written"),
    [("-", "none"), ("--", "5.92 2.56"), ("dotted", "1.6 2.64"), ((0, (1, 2)), "1.6 3.2")],
)
def test_dashes_are_as_matplotlib_draws_them(tmp_path, monkeypatch, dashes, written):
    for name in METHODS:
        monkeypatch.setitem(METHODS, name, replace(METHODS[name], look=Look("#123456", "o", dashes)))
    make(tmp_path, ["epochs"])
    comparison = next(one for one in comparisons(tmp_path) if one.experiment.name == "epochs")
    assert f'stroke-dasharray="{written}"' in swatches(comparison)[0].picture
