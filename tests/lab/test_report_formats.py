"""A table as Markdown, LaTeX, CSV and on the page: the same cells, marks and notes, escaped as each form needs."""

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest

from made_records import make
from ogd.lab.reporting import formats
from ogd.lab.reporting.page import page
from ogd.lab.reporting.report import comparisons


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Two experiments of different kinds, in the quick profile."""
    return make(tmp_path_factory.mktemp("few"), ["rotated", "curves"])


def comparison(folder, name):
    return next(one for one in comparisons(folder) if one.experiment.name == name)


def test_latex_is_booktabs(few):
    text = formats.latex(comparison(few, "rotated"))
    for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{llrrrrrr}", r"\label{tab:ogd-rotated}"):
        assert rule in text
    body = text[text.index(r"\toprule") : text.index(r"\bottomrule")]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 1 + 5 * 3 + 3
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {7}
    assert r"EWC, $\lambda$ = 1 & ours" in text
    assert r"62.9 $\pm$ 1.0" in text
    assert r", that is $|d| \le 2\sqrt{s^2/n + \sigma^2}$;" in text
    assert not re.search(r"[λ°±×≈▲▽–√σ²≤]", text)


def test_csv_has_a_line_a_cell_and_unrounded_numbers(few):
    table = comparison(few, "rotated")
    lines = list(csv.DictReader(io.StringIO(formats.tidy(table))))
    assert len(lines) == 8 * 6
    first = lines[0]
    assert (first["row"], first["column"], first["runs"], first["paper_mean"]) == ("MTL", "task 1", "2", "92.1")
    assert float(first["ours_mean"]) == pytest.approx(table.lines[0].entries[0].mean, rel=1e-5)
    tuned = next(line for line in lines if line["row"] == "EWC, tuned λ")
    assert (tuned["paper_mean"], tuned["difference"], tuned["mark"]) == ("", "", "")


def test_markdown_has_the_marks_and_what_they_mean(few):
    text = formats.table(comparison(few, "rotated")).markdown()
    assert text.startswith("**Table 2. Rotated MNIST")
    assert "quick profile" in text
    assert "▽ short of the paper's" in text
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {9}
    assert formats.table(comparison(few, "curves")).markdown().count("|  |  |") == 1


def test_rows_of_ours_are_marked_wherever_they_stand_beside_published_ones(few):
    table = comparison(few, "rotated")
    assert [line.label for line in table.lines if line.alone] == ["ER", "DER++", "EWC, tuned λ"]
    said = "Rows marked 'ours only' are not in the paper."
    for text, row in (
        (formats.table(table).markdown(), "| ER | ours only |"),
        (formats.latex(table), "\nDER++ & ours only &"),
        (
            page([table], {"rotated-heatmap": ""}, few).replace("&#39;", "'"),
            '<th scope="row" class="what">ours only</th>',
        ),
    ):
        assert said in text
        assert row in text
    for name in ("curves", "every"):
        assert not any(line.alone for line in comparison(few, name).lines)


def test_odd_names_are_escaped_in_every_form(few):
    table = comparison(few, "rotated")
    odd = replace(table, lines=(replace(table.lines[0], label='<b>&|_%{}\\ "x"</b>'),))
    assert r"| <b>&\|_%{}\ " in formats.table(odd).markdown()
    assert r"\textless{}b\textgreater{}\&\textbar{}\_\%\{\}\textbackslash{}" in formats.latex(odd)
    assert next(csv.DictReader(io.StringIO(formats.tidy(odd))))["row"] == odd.lines[0].label
    html = page([odd], {"rotated-heatmap": ""}, Path("a <b>"))
    assert "<b>" not in html
    assert "&lt;b&gt;&amp;|_%{}" in html
