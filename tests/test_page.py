"""The page in a real browser: it loads without a word on the console, in both schemes and on a narrow screen."""

import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from made_records import make
from ogd import cli
from ogd.experiments import EXPERIMENTS

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TABLES = [name for name, experiment in EXPERIMENTS.items() if experiment.kind == "table"]
FIGURES = [name for name, experiment in EXPERIMENTS.items() if experiment.kind == "figure"]
HEATMAPS = [f"{name}-heatmap" for name in TABLES if EXPERIMENTS[name].value == "final"]
VOID = {"meta", "link", "br", "hr", "img", "input"}
browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: chromium, chromium-browser or google-chrome")


class Elements(HTMLParser):
    """Collect ids, links and the text of a page, and check that what is opened is closed."""

    def __init__(self, html):
        super().__init__()
        self.ids, self.links, self.names, self.open, self.attributes = [], [], [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)
        self.attributes += attrs
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            elif name in ("href", "src"):
                self.links.append(value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The report of every experiment, from records in the quick profile."""
    folder = make(tmp_path_factory.mktemp("records"))
    cli.main(["report", str(folder)])
    return folder / "report"


@pytest.fixture(scope="module")
def elements(out):
    return Elements((out / "index.html").read_text(encoding="utf-8"))


def test_every_figure_and_table_is_there_as_files(out):
    files = {str(path.relative_to(out)) for path in out.rglob("*.*")}
    expected = {f"figures/{name}.{form}" for name in FIGURES + HEATMAPS for form in ("svg", "pdf")}
    expected |= {f"tables/{name}.{form}" for name in EXPERIMENTS for form in ("md", "tex", "csv")}
    assert files == expected | {"index.html"}
    for name in FIGURES + HEATMAPS:
        assert (out / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert "</svg>" in (out / "figures" / f"{name}.svg").read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_whole(out, elements):
    assert elements.open == []
    assert len(elements.ids) == len(set(elements.ids))
    assert set(elements.ids) >= {*EXPERIMENTS, *HEATMAPS, *(f"table-{name}" for name in EXPERIMENTS)}
    assert set(elements.ids) >= {"summary", "choices", "commands", "cost", "environment"}
    assert elements.names.count("svg") == len(FIGURES + HEATMAPS)
    assert elements.attributes.count(("role", "img")) == len(FIGURES + HEATMAPS)
    assert "script" not in elements.names
    for link in elements.links:
        if link.startswith("#"):
            assert link[1:] in elements.ids, link
        else:
            assert link == "data:," or (out / link).exists(), link


def test_nothing_is_fetched(out):
    html = (out / "index.html").read_text(encoding="utf-8")
    assert "http:" not in html
    assert "https:" not in html
    assert "@import" not in html


def look(page, *options):
    """Load a page; return its document and what it said on the console."""
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
    command += ["--allow-file-access-from-files", "--virtual-time-budget=5000", *options, "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@browser
@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
def test_it_loads_in_silence(out, scheme):
    document, console = look(out / "index.html", f"--blink-settings=preferredColorScheme={scheme}")
    assert console == []
    ids = Elements(document).ids
    assert set(ids) >= {*EXPERIMENTS, *HEATMAPS, *(f"table-{name}" for name in EXPERIMENTS)}


@browser
def test_an_outside_request_would_be_heard(out, tmp_path):
    html = (out / "index.html").read_text(encoding="utf-8")
    page = tmp_path / "index.html"
    page.write_text(html.replace("<main>", '<main><img src="https://example.invalid/a.png">'), encoding="utf-8")
    assert any("Content Security Policy" in line for line in look(page)[1])


FRAME = """<iframe src="{page}" style="width: {width}px; height: 900px; border: 0" onload="measure(this)"></iframe>
<script>function measure(frame) {{
  const inside = frame.contentDocument, box = inside.documentElement, style = getComputedStyle(inside.body);
  document.title = [box.scrollWidth, box.clientWidth, style.backgroundColor, style.color].join("|");
}}</script>"""


@browser
@pytest.mark.parametrize("width", [360, 390, 1280])
def test_only_tables_and_figures_scroll_sideways(out, tmp_path, width):
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(page=(out / "index.html").as_uri(), width=width))
    title = look(frame)[0].split("<title>")[1].split("</title>")[0]
    scrolled, visible, *_ = title.split("|")
    assert 0 < int(scrolled) <= int(visible) <= width


@browser
def test_both_schemes_have_their_own_ground(out, tmp_path):
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(page=(out / "index.html").as_uri(), width=800))
    titles = [look(frame, f"--blink-settings=preferredColorScheme={scheme}")[0] for scheme in (0, 1)]
    grounds = [title.split("<title>")[1].split("|")[2] for title in titles]
    assert grounds == ["rgb(20, 23, 26)", "rgb(255, 255, 255)"]
