"""The documents say what is true: their code runs, their tables are the records', their links lead somewhere."""

import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import griffe
import pytest

import ogd
from ogd.lab import catalogue
from ogd.lab.records import tuning

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
refresh = importlib.import_module("refresh")
mathematics = importlib.import_module("mathematics")
pages = importlib.import_module("pages")
reference_defaults = importlib.import_module("reference_defaults")

DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "measurements/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
ROOMS = ["memory", *(f"lab.{name}" for name in ogd.lab.__all__ if name != "load_plugin")]


def ids(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_code_runs(path, tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    scope = {}
    for block in blocks:
        exec(compile(block, str(path), "exec"), scope)


def test_the_readme_is_short_and_leads_with_rehearsal():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) < 900
    *_, lines = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert "memory = ogd.ExampleMemory(model)" in lines
    assert len([line for line in lines.splitlines() if line]) == 9


def test_the_readme_counts_the_published_cells_as_the_reproduction_does():
    flat = " ".join((ROOT / "README.md").read_text().split())
    counts = re.search(r"(\d+) of its (\d+) published cells agree with ours, (\d+) of ours are better and (\d+)", flat)
    strict = re.search(r"(\d+) agree, (\d+) are better and (\d+) fall short", flat)
    rows = re.findall(r"\| 2 √.*\| (\d+) \| (\d+) \| (\d+) \|", (ROOT / "docs" / "reproduction.md").read_text())
    assert rows == [counts.group(1, 3, 4), strict.groups()]
    assert sum(map(int, rows[0])) == int(counts[2])


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_tables_are_drawn_from_the_records(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("ogd.lab.experiments.dispatch.dispatch", None)  # nothing may be trained here
    text = path.read_text()
    assert refresh.redraw(text) == text, f"{path.name}: `make docs` redraws its tables"


def test_a_script_is_shown_and_never_run(tmp_path):
    script = tmp_path / "figure.py"
    script.write_text('def show():\n    print("| from a record |")\n')
    block = f"<!-- python {script} --show -->\n{{}}<!-- end -->"
    assert refresh.redraw(block.format("stale\n")) == block.format("| from a record |\n")
    with pytest.raises(ValueError, match="--show"):
        refresh.redraw(block.replace(" --show", "").format(""))


def test_every_figure_is_named_with_the_script_that_draws_it():
    pages = "".join(path.read_text() for path in DOCUMENTS)
    for script in (ROOT / "measurements").glob("*/*.py"):
        name = script.relative_to(ROOT).as_posix()
        assert f"python {name}`" in pages, name
    for image in (ROOT / "docs" / "images").iterdir():
        assert f"(images/{image.name})" in pages, image.name


@pytest.mark.parametrize("path", DOCUMENTS, ids=ids)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_every_test_that_contributors_are_sent_to_exists():
    for name in re.findall(r"`(test_[\w*]+)`", (ROOT / "CONTRIBUTING.md").read_text()):
        assert list((ROOT / "tests").rglob(f"{name}.py")), name


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_are_documented(room):
    module = importlib.import_module(f"ogd.{room}")
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isfunction(thing) or inspect.isclass(thing):
            assert thing.__doc__, f"ogd.{room}.{name}"
            assert not thing.__doc__.startswith(f"{name}("), f"ogd.{room}.{name} has only a dataclass's own docstring"


def test_the_reference_has_every_public_name():
    for room in ROOMS:
        page = (ROOT / "docs" / ("records.md" if room.startswith("lab") else "reference.md")).read_text()
        module = importlib.import_module(f"ogd.{room}")
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isfunction(thing) or inspect.isclass(thing):
                assert re.search(rf"^::: ogd\.[\w.]+\.{name}$", page, re.MULTILINE), f"ogd.{room}.{name}"


@pytest.mark.parametrize("memory", [ogd.ExampleMemory, ogd.GradientMemory])
def test_the_reference_lists_every_member_of_a_memory(memory):
    page = (ROOT / "docs" / "reference.md").read_text()
    entry = page.split(f"::: ogd.memory.{memory.__name__}\n")[1].split("\n:::")[0]
    (listed,) = re.findall(r"^ +members: \[(.*)\]$", entry, re.MULTILINE)
    assert {*listed.split(", "), "kind"} == {name for name in dir(memory) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("source", "drawn"),
    [
        ("K^+", "<msup><mi>K</mi><mo>+</mo></msup>"),
        (
            "Σ_{j<T} a",
            "<mrow><munder><mo>Σ</mo><mrow><mi>j</mi><mo>&lt;</mo><mi>T</mi></mrow></munder><mi>a</mi></mrow>",
        ),
        (r"\frac{1}{2}", "<mfrac><mn>1</mn><mn>2</mn></mfrac>"),
        (r"\text{a b}", "<mtext>a&nbsp;b</mtext>"),
    ],
)
def test_formulas_are_drawn(source, drawn):
    page = mathematics.on_page_markdown(f"before\n```math\n{source}\n```\nafter")
    assert page == f'before\n<div class="formula"><math display="block">{drawn}</math></div>\nafter'


def test_every_formula_of_the_documents_can_be_drawn():
    pages = {path.name: path.read_text() for path in DOCUMENTS}
    drawn = {name: mathematics.on_page_markdown(text).count("<math") for name, text in pages.items()}
    assert drawn["how-it-works.md"] >= 4
    with pytest.raises(ValueError, match="not known"):
        mathematics.mathml(r"\unheard")


def test_the_documents_take_their_addresses_from_the_package_and_ask_no_server():
    config = pages.on_config({})
    assert config["repo_url"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    assert ogd.__version__ in config["copyright"]
    assert pages.on_post_page('<a href="x" data-md-component="source">') == '<a href="x">'


def test_tables_of_sentences_may_wrap_and_those_of_numbers_may_not():
    row = "<table><tr><td>{0}</td><td style='text-align: right;'>{1}</td><td>{0}</td></tr></table>"
    numbers = row.format("whatever the first and last column hold", "<code>5.36</code> × (3.65 … 6.86)")
    assert pages.on_page_content(f"<p>{numbers}</p>") == f"<p>{numbers}</p>"
    sentences = row.format("a", "whatever a column between them holds")
    assert pages.on_page_content(numbers + sentences) == numbers + sentences.replace("<table>", "<table data-prose>")


def test_the_reference_shows_a_default_s_value():
    shown = [griffe.Parameter("a", default="defaults.PER_TASK"), griffe.Parameter("b", default="True")]
    reference_defaults.Defaults().on_function(func=griffe.Function("f", parameters=griffe.Parameters(*shown)))
    assert [parameter.default for parameter in shown] == ["200", "True"]


def test_the_citation_is_of_this_version():
    assert f"\nversion: {ogd.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_tuned_defaults_are_what_the_records_say():
    for method, entry in catalogue.METHODS.items():
        for option in entry.options:
            for benchmark, value in option.tuned:
                found = tuning.read(ROOT / "results" / "tuning" / f"{method}-{benchmark}.json")
                assert (found.option, found.choice) == (option.name, value)


def test_no_path_of_a_machine_is_named():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    texts = [ROOT / name for name in files if not name.endswith((".gz", ".png"))]
    for path in texts:
        assert not re.search(r"/(home|root|work)/\w", path.read_text(errors="ignore")), path


def test_figures_of_the_changelog_stand_in_a_document():
    """The newest section's measured figures are on a page, where they are drawn from records or tested."""
    newest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    pages = " ".join(path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    figures = re.findall(r"\d[\d,.]*(?: (?:to|and) \d[\d,.]*)?\s(?:×|%|[KMG]B|points|times)", newest)
    assert len(figures) > 5
    for figure in figures:
        assert " ".join(figure.split()) in " ".join(pages.split()), figure
