"""`ogd report` without a browser: what it says of complete, incomplete and odd records, and in which formats."""

import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from made_records import keep, made, make
from ogd.lab import cli
from ogd.lab.data import load
from ogd.lab.experiments import EXPERIMENTS, quick, resolve
from ogd.lab.experiments.experiment import Cell
from ogd.lab.experiments.paper import INIT
from ogd.lab.records.speed import Ratio, write
from ogd.lab.reporting import figures, formats
from ogd.lab.reporting import page as pages
from ogd.lab.reporting.accuracy_plots import heat_maps
from ogd.lab.reporting.cells import RULE, Entry, Tally, judge
from ogd.lab.reporting.choices import CHOICES
from ogd.lab.reporting.collect import collect
from ogd.lab.reporting.compare import Comparison
from ogd.lab.reporting.page import page, scores
from ogd.lab.reporting.report import comparisons

ROOT = Path(__file__).parents[2]


def run(capsys, *arguments):
    code = 0
    try:
        cli.main(["report", *map(str, arguments)])
    except SystemExit as stop:
        code = int(stop.code or 0)
    return (code, *capsys.readouterr())


def comparison(folder, name) -> Comparison:
    return next(one for one in comparisons(folder) if one.experiment.name == name)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Two experiments of different kinds, in the quick profile."""
    return make(tmp_path_factory.mktemp("few"), ["rotated", "curves"])


@pytest.mark.parametrize(
    ("mean", "error", "published", "verdict"),
    [
        (90.0, 0.0, Cell(91.0, 0.5), "agrees"),  # exactly twice the paper's
        (90.0, 0.5, Cell(91.0, 0.0), "agrees"),  # exactly twice ours
        (90.0, 0.3, Cell(91.0, 0.4), "agrees"),  # exactly twice both together
        (90.0, 0.3, Cell(91.1, 0.4), "short"),
        (90.0, 0.3, Cell(88.9, 0.4), "better"),
        (60.1, 0.0, Cell(60.1 - 0.2, 0.1), "agrees"),  # whatever the last bit
        (99.96, 0.0, Cell(100.0, 0.0), "agrees"),  # the paper's one decimal hides it
        (99.94, 0.0, Cell(100.0, 0.0), "short"),
        (90.0, math.nan, Cell(91.0, 0.5), "agrees"),  # a single run
        (90.0, math.nan, Cell(91.1, 0.5), "short"),
        (90.0, 0.5, Cell(91.0, math.nan), None),  # an average, whose spread nobody knows
        (math.nan, math.nan, Cell(91.0, 0.5), None),  # not run
    ],
)
def test_marks(mean, error, published, verdict):
    mark = judge(mean, error, published)
    assert (mark and mark.name) == verdict


def test_our_own_noise_widens_it_only_by_its_standard_error():
    wild = (61.0, 65.0, 73.0, 81.0, 85.0)  # s = 10.2, s/√5 = 4.6
    assert Entry(wild, 5, Cell(64.5, 1.0)).mark.name == "agrees"  # 8.5 of 9.3
    assert Entry(wild, 5, Cell(63.0, 1.0)).mark.name == "better"  # 10, which is within 2 s
    assert Entry(wild[:1], 5, Cell(63.1, 1.0)).mark.name == "short"
    assert Entry((), 5, Cell(63.1, 1.0)).mark is None


def test_the_strict_count_divides_the_published_spread_too():
    published = Cell(90.0, 2.0, runs=4)  # σ/√m = 1
    ours = (91.0, 92.0, 93.0, 94.0, 95.0)  # mean 93, s² = 2.5, s²/n = 0.5; 2 √(0.5 + 4) = 4.24, 2 √(0.5 + 1) = 2.45
    assert Entry(ours, 5, published).mark.name == "agrees"
    assert Entry(ours, 5, published).strict_mark.name == "better"
    assert Entry(ours, 5, replace(published, mean=90.6)).strict_mark.name == "agrees"  # 2.4 of 2.45
    assert Entry(ours, 5, replace(published, mean=95.5)).strict_mark.name == "short"  # 2.5
    assert Entry(ours, 5, replace(published, runs=1)).strict_mark.name == "agrees"  # of how many runs is not known
    assert Entry((), 5, published).strict_mark is None
    assert Entry(ours, 5).strict_mark is None
    tally = Tally((Entry(ours, 5, published), Entry(ours, 5, replace(published, mean=95.5))))
    assert (tally.counts, tally.strict_counts) == ({"agrees": 2}, {"better": 1, "short": 1})
    assert formats.counts(tally, strict=True) == "0 / 1 / 1"


def test_a_published_spread_is_of_the_paper_s_runs_in_every_profile():
    tables = [one for one in EXPERIMENTS.values() if any(row.published for row in one.rows)]
    assert len(tables) == 8
    for table in tables:
        for profile in (table, quick(table)):
            runs = {cell.runs for row in profile.rows for cell in row.published}
            assert runs == {5 if table.value == "final" else 10}, table.name


def test_the_same_records_give_the_same_bytes_and_torch_is_not_imported(few, tmp_path, capsys):
    code, out, err = run(capsys, few, "--out", tmp_path / "one")
    assert (code, out, err) == (0, f"{tmp_path / 'one' / 'index.html'}\n", "")
    arguments = ["report", str(few), "--out", str(tmp_path / "two")]
    script = f"import sys; from ogd.lab.cli import main; main({arguments!r}); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*"))
    shown = {"rotated", "curves"}  # of those that share settings with them less than half is run
    assert {path.stem for path in files if path.suffix == ".csv"} == shown
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


def test_fewer_runs_are_said_wherever_they_are_shown(tmp_path):
    mnist = load("mnist")
    make(tmp_path, ["rotated"], full=True)
    sgd, mtl = (resolve("rotated", method, mnist, init=INIT) for method in ("sgd", "mtl"))
    for request, runs in ((sgd, (1, 2, 3)), (mtl, range(5))):
        for run in runs:
            made(request, run).path(tmp_path).unlink()
    table = comparison(tmp_path, "rotated")
    assert table.missing == ("MTL: not run yet", "SGD: 2 of 5 runs")
    for text in (formats.table(table).markdown(), formats.latex(table), page([table], {}, tmp_path)):
        assert "(2 of 5 runs)" in text
        assert "MTL: not run yet. SGD: 2 of 5 runs." in text
    (score,) = scores([table])
    assert score.tally.missing == 5
    assert score.tally.counts.total() == 20
    titles = [axes.get_title("left") for axes in heat_maps(table.found).axes]
    assert "SGD (2 of 5 runs)" in titles
    assert "MTL" not in titles


def test_only_the_first_runs_count(tmp_path):
    make(tmp_path, ["epochs"])
    before = comparison(tmp_path, "epochs")
    for answer in before.found.answers:
        keep(made(answer.requests[0], 7), tmp_path)
    assert comparison(tmp_path, "epochs") == before


def test_missing_columns_are_dashes_and_a_line_breaks_there(tmp_path):
    make(tmp_path, ["epochs"], full=True)
    row = comparison(tmp_path, "epochs").found.answers[1]
    for record in row.runs[1]:
        record.path(tmp_path).unlink()
    table = comparison(tmp_path, "epochs")
    assert table.missing == ("OGD: not run yet at 40 epochs",)
    assert formats.lines(table.lines[1])[0][1][1] == ("–", None)
    drawn = figures.draw(table).axes[0].lines
    assert sum(math.isnan(y) for line in drawn for y in line.get_ydata()) >= 1


def test_a_single_run_has_no_spread(tmp_path):
    make(tmp_path, ["curves", "angles", "lambda", "split"], full=True, runs=1)
    for name in ("curves", "angles", "lambda"):
        figures.draw(comparison(tmp_path, name))
    table = comparison(tmp_path, "split")
    assert re.fullmatch(r"\d\d\.\d \(1 of 5 runs\)", formats.ours(table.lines[0].entries[0]))
    assert table.lines[0].entries[0].mark is not None


def test_full_scale_goes_before_quick_but_a_neighbour_s_records_do_not_make_an_experiment(tmp_path):
    make(tmp_path, ["rotated", "every"])
    profile = {one.experiment.name: one.experiment.profile for one in collect(tmp_path)}
    assert "quick" in profile["rotated"]
    make(tmp_path, ["rotated"], full=True)
    profile = {one.experiment.name: one.experiment.profile for one in collect(tmp_path)}
    assert profile["rotated"] == "the paper's scale"
    assert "quick" in profile["every"]  # of which OGD and SGD are rotated's


def test_the_time_of_a_step_stands_beside_every(tmp_path):
    make(tmp_path, ["every"])
    assert comparison(tmp_path, "every").aside == ""
    write(
        [Ratio("ogd_over_sgd", 9.87, 9, 11, "m"), Ratio("ogd_every_50_over_sgd", 1.7, 1, 2, "m")],
        tmp_path / "speed.json",
    )
    table = comparison(tmp_path, "every")
    assert [line.aside for line in table.lines] == ["9.9 ×", "–", "1.7 ×", "–", "1.0 ×"]
    assert "9.9 ×" in formats.table(table).markdown()
    assert r"9.9 $\times$" in formats.latex(table)
    assert "ogd bench" in page([table], {}, tmp_path)


def test_a_group_s_time_counts_once(few):
    records = list(comparison(few, "rotated").found.records())
    assert len(records) == 16
    assert pages.seconds(records) == pytest.approx(8 * 60.5)
    assert pages.seconds(records * 2) == pages.seconds(records)
    facts = dict(pages.environments(records))
    assert facts["commit"] == [("0123456789", 16)]
    assert facts["system"] == [("not known", 16)]


def test_what_is_not_run_is_listed_with_its_command(few):
    html = page(comparisons(few), dict.fromkeys(EXPERIMENTS, ""), few)
    for name in set(EXPERIMENTS) - {"rotated", "curves", "every", "lambda", "init"}:
        assert f"<code>ogd reproduce {name} --quick --out {few.name}</code>" in html  # as all else there
    assert str(few) not in html  # a page is shown around


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: folder.rmdir(), "DIR: there is no folder"),
        (lambda folder: None, "holds no records"),
        (
            lambda folder: make(folder, ["epochs"]).joinpath("speed.json").write_text("{}"),
            "not a usable record of speeds",
        ),
    ],
)
def test_errors_are_one_line_and_leave_nothing(tmp_path, capsys, prepare, message):
    folder = tmp_path / "records"
    folder.mkdir()
    prepare(folder)
    code, out, err = run(capsys, folder)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert not (folder / "report").exists()


def test_a_place_that_cannot_be_written_to_is_said_before_drawing(few, capsys, monkeypatch):
    monkeypatch.setattr("ogd.lab.reporting.report.write", None)
    assert run(capsys, few, "--out", "/dev/null/x") == (
        2,
        "",
        "ogd: --out: cannot write to /dev/null/x: Not a directory\n",
    )


def test_open_opens_the_page(few, tmp_path, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("ogd.lab.reporting.report.write", lambda found, folder, out: out / "index.html")
    run(capsys, few, "--out", tmp_path)
    assert opened == []
    run(capsys, few, "--out", tmp_path, "--open")
    assert opened == [(tmp_path / "index.html").as_uri()]


def test_the_document_states_the_same_choices():
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    section = text[text.index("## Choices where the paper is silent") :]
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", section[: section.index("\n## ", 5)], re.MULTILINE)
    assert tuple(rows[1:]) == CHOICES


def test_the_document_states_the_same_rule():
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert RULE in " ".join(text.split())


def test_one_colour_per_method(few):
    drawn = figures.draw(comparison(few, "curves")).axes
    colours = {line.get_color() for line in drawn[0].lines if len(line.get_xdata()) > 2}
    assert len(colours) == 5
