"""The page in a real browser: it loads without a word on the console, in both schemes and on a narrow screen."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html import escape, unescape
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

from made_records import make
from ogd.lab import cli
from ogd.lab.catalogue import METHODS
from ogd.lab.experiments import EXPERIMENTS

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
TABLES = [name for name, experiment in EXPERIMENTS.items() if experiment.kind == "table"]
FIGURES = [name for name, experiment in EXPERIMENTS.items() if experiment.kind == "figure"]
HEATMAPS = [f"{name}-heatmap" for name in TABLES if EXPERIMENTS[name].value == "final"]
DRAWN = [*FIGURES, *HEATMAPS, "opening"]
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
    expected = {f"figures/{name}.{form}" for name in DRAWN for form in ("svg", "pdf")}
    expected |= {f"tables/{name}.{form}" for name in EXPERIMENTS for form in ("md", "tex", "csv")}
    assert files == expected | {"index.html"}
    for name in DRAWN:
        assert (out / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert "</svg>" in (out / "figures" / f"{name}.svg").read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_whole(out, elements):
    assert elements.open == []
    assert len(elements.ids) == len(set(elements.ids))
    assert set(elements.ids) >= {*EXPERIMENTS, *HEATMAPS, *(f"table-{name}" for name in EXPERIMENTS)}
    assert set(elements.ids) >= {"summary", "choices", "commands", "cost", "environment"}
    assert elements.attributes.count(("role", "img")) == len(DRAWN) + len(
        HEATMAPS
    )  # a slider's figure beside each heat map
    assert elements.names.count("script") == 1
    for link in elements.links:
        if link.startswith("#"):
            assert link[1:] in elements.ids, link
        else:
            assert link == "data:," or (out / link).exists(), link


def test_the_paper_s_order(out):
    html = (out / "index.html").read_text(encoding="utf-8")
    headings = re.findall(r'<p class="title">((?:Table|Figure) \d+)', html)
    assert headings == [f"Table {n}" for n in (1, 2, 3, 4, 4, 5, 6, 7)] + [f"Figure {n}" for n in (2, 3, 4, 5)]


def test_every_published_cell_is_in_the_strip_and_leads_to_its_own(out, elements):
    html = (out / "index.html").read_text(encoding="utf-8")
    published = sum(len(row.published) for experiment in EXPERIMENTS.values() for row in experiment.rows)
    links = re.findall(r'<a class="(\w+)" href="#(cell-[^"]*)"', html)
    assert len({target for _, target in links}) == len(links) == published
    for verdict, target in links:
        cell = html[html.index(f'<td id="{target}"') :].partition("</td>")[0]
        assert f'class="mark {verdict}"' in cell


def test_only_its_own_script_may_run(out):
    html = (out / "index.html").read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', html)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["script-src"] == f"'sha256-{digest}'"


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


DRIVER = """<iframe src="{page}" style="width: {width}px; height: 900px; border: 0" onload="drive(this)"></iframe>
<script>function drive(frame) {{
  const page = frame.contentDocument, look = (element) => frame.contentWindow.getComputedStyle(element);
  const found = {{}};
  {steps}
  document.title = JSON.stringify(found);
}}</script>"""


def drive(page, folder, steps, *options, width=1280):
    """Do something on the page in a frame, with nothing between two steps, and return what was found."""
    frame = folder / "frame.html"
    frame.write_text(DRIVER.format(page=page.as_uri(), width=width, steps=steps), encoding="utf-8")
    document, console = look(frame, *options)
    assert console == []
    return json.loads(unescape(document.split("<title>")[1].split("</title>")[0]))


@browser
def test_a_method_is_switched_off_everywhere_and_on_again(out, tmp_path):
    found = drive(
        out / "index.html",
        tmp_path,
        """
        const shown = () => ["#table-permuted tbody", "#curves svg g", "#rotated-heatmap svg g"].map((parts) =>
          [...page.querySelectorAll(`${parts}[data-method="agem"]`)].filter((p) => look(p).display !== "none").length);
        const button = page.querySelector('.switches [data-switch="agem"]');
        const legend = page.querySelector('#curves .legend [data-switch="agem"]');
        found.before = shown();
        button.click(); found.off = shown(); found.pressed = legend.getAttribute("aria-pressed");
        found.others = look(page.querySelector('#table-permuted tbody[data-method="ogd"]')).display;
        legend.click(); found.on = shown();
        """,
    )
    assert found["before"] == found["on"]
    assert min(found["before"]) > 0
    assert found["off"] == [0, 0, 0]
    assert (found["pressed"], found["others"]) == ("false", "table-row-group")


@browser
def test_a_heading_sorts_down_up_and_back(out, tmp_path):
    found = drive(
        out / "index.html",
        tmp_path,
        """
        const table = page.getElementById("table-permuted");
        const means = () => [...table.tBodies].map((body) => parseFloat(body.rows[0].cells[2].textContent));
        found.orders = [means()];
        for (const _ of "123") { table.querySelectorAll("thead .sort")[1].click(); found.orders.push(means()); }
        found.heading = table.querySelectorAll("thead .sort")[1].textContent;
        """,
    )
    first, down, up, back = found["orders"]
    assert found["heading"] == "task 1"
    assert down == sorted(first, reverse=True)
    assert up == sorted(first)
    assert back == first != down


@browser
def test_differences_are_folded_until_asked_for_and_always_printed(out, tmp_path):
    steps = """
        const row = page.querySelector("#table-permuted tr.difference"), fold = page.querySelector("#permuted .fold");
        found.seen = [look(row).display];
        fold.click(); found.seen.push(look(row).display);
        """
    assert drive(out / "index.html", tmp_path, steps)["seen"] == ["none", "table-row"]
    css = re.search(r"<style>(.*)</style>", (out / "index.html").read_text(encoding="utf-8"), re.DOTALL)[1]
    for rule in (".off { display: none; }", ".live .folds:not(.open) tr.difference { display: none; }"):
        assert re.search(r"@media screen {[^@]*" + re.escape(rule), css)


@browser
def test_a_figure_tells_its_values_of_the_methods_shown(out, tmp_path):
    found = drive(
        out / "index.html",
        tmp_path,
        """
        const spots = page.querySelectorAll("#angles .spot"), tip = page.querySelector(".tip");
        found.hidden = tip.hidden;
        spots[1].dispatchEvent(new PointerEvent("pointerenter", { clientX: 20, clientY: 20 }));
        found.said = [...tip.children].map((part) => part.textContent);
        page.querySelector('[data-switch="sgd"]').click();
        spots[1].dispatchEvent(new PointerEvent("pointerenter", { clientX: 20, clientY: 20 }));
        found.fewer = [...tip.children].map((part) => part.textContent);
        const rows = [...page.querySelectorAll("#table-angles tbody tr:first-child")];
        found.table = rows.map((row) => row.cells[2].textContent.trim());
        """,
    )
    assert found["hidden"]
    heading, *said = found["said"]
    assert heading == EXPERIMENTS["angles"].columns[1]
    assert said[1::2] == found["table"]
    assert "SGD" in said
    assert "SGD" not in found["fewer"]
    assert len(found["fewer"]) == len(found["said"]) - 2


@browser
def test_contents_and_methods_stay(out, tmp_path):
    steps = """
        page.documentElement.style.scrollBehavior = "auto";
        page.getElementById("lambda").scrollIntoView();
        found.top = page.querySelector("nav").getBoundingClientRect().top;
        const box = page.querySelector("#table-permuted").parentNode;
        box.scrollLeft = 150;
        found.left = box.querySelector("tbody th").getBoundingClientRect().left;
        found.scrolled = box.scrollLeft;
        """
    assert drive(out / "index.html", tmp_path, steps)["top"] == 0
    narrow = drive(out / "index.html", tmp_path, steps, width=390)
    assert narrow == {"top": 0, "left": 0, "scrolled": 150}


@browser
def test_it_is_whole_without_scripts(out, tmp_path):
    html = (out / "index.html").read_text(encoding="utf-8")
    page = tmp_path / "index.html"
    page.write_text(re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL), encoding="utf-8")
    found = drive(
        page,
        tmp_path,
        """
        const rows = [...page.querySelectorAll("#table-permuted tr")];
        found.rows = rows.every((row) => look(row).display === "table-row");
        found.switches = look(page.querySelector(".switches")).display;
        found.title = page.querySelector("#angles .spot title").textContent.split("\\n").length;
        """,
    )
    assert found == {"rows": True, "switches": "none", "title": 1 + len(EXPERIMENTS["angles"].rows)}


@browser
def test_both_schemes_have_their_own_ground(out, tmp_path):
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(page=(out / "index.html").as_uri(), width=800))
    titles = [look(frame, f"--blink-settings=preferredColorScheme={scheme}")[0] for scheme in (0, 1)]
    grounds = [title.split("<title>")[1].split("|")[2] for title in titles]
    assert grounds == ["rgb(20, 23, 26)", "rgb(255, 255, 255)"]


@browser
def test_a_slider_moves_every_line_to_where_it_was(out, tmp_path):
    found = drive(
        out / "index.html",
        tmp_path,
        """
        const figure = page.querySelector("#permuted .after"), input = figure.querySelector("input");
        const lines = [...figure.querySelectorAll("svg[role] [data-method]")];
        const path = (line) => line.querySelector("path").getAttribute("d");
        const shown = (line) => [...line.querySelectorAll("use")].filter((marker) => marker.style.display === "");
        found.moves = JSON.parse(figure.dataset.moves);
        found.last = lines.map((line) => path(line).match(/[\\d.]+/g).map(Number));
        input.value = 2; input.dispatchEvent(new Event("input"));
        found.output = figure.querySelector("output").textContent;
        found.markers = lines.map((line) => shown(line).length);
        """,
    )
    for line, moves in zip(found["last"], found["moves"], strict=True):  # in the order in which they are drawn
        assert line == pytest.approx([number for place in moves[-1] for number in place], abs=0.1)
        assert [len(places) for places in moves] == [1, 2, 3, 4, 5]
    assert found["output"] == "2"
    assert set(found["markers"]) == {2}


@browser
def test_a_figure_is_saved_as_a_slide_without_what_is_switched_off(out, tmp_path):
    found = drive(
        out / "index.html",
        tmp_path,
        """
        frame.contentWindow.HTMLAnchorElement.prototype.click = function () { found[this.download] = this.href; };
        page.querySelector('#curves .legend [data-switch="agem"]').click();
        page.querySelector("#curves .slide button").click();
        """,
    )
    slide = unquote(found["curves-16x9.svg"].partition(",")[2])
    assert 'viewBox="0 0 1600 900"' in slide
    assert "OGD" in slide
    assert "A-GEM" not in slide
    assert METHODS["ogd"].look.colour.lower() in slide
    assert METHODS["agem"].look.colour.lower() not in slide
    assert "var(" not in slide
    assert "currentColor" not in slide


@browser
def test_a_tooltip_leaves_out_what_is_switched_off(out, tmp_path):
    found = drive(
        out / "index.html",
        tmp_path,
        """
        const said = () => {
          page.querySelector(".opening .spot").dispatchEvent(new PointerEvent("pointerenter"));
          return page.querySelector(".tip").textContent;
        };
        found.before = said();
        page.querySelector('.switches [data-switch="agem"]').click();
        found.after = said();
        """,
    )
    assert "A-GEM" in found["before"]
    assert "A-GEM" not in found["after"]
    assert "OGD" in found["after"]


@browser
def test_a_link_into_what_is_folded_unfolds_it(out, tmp_path):
    page = tmp_path / "index.html"
    page.write_text((out / "index.html").read_text(encoding="utf-8"), encoding="utf-8")
    steps = 'found.open = page.querySelector("#permuted-heatmap").open;'
    frame = tmp_path / "frame.html"
    frame.write_text(DRIVER.format(page=f"{page.as_uri()}#permuted-heatmap", width=1280, steps=steps), encoding="utf-8")
    document, _ = look(frame)
    assert json.loads(unescape(document.split("<title>")[1].split("</title>")[0])) == {"open": True}


def test_the_contents_have_titles_and_headings_say_what_was_found(out):
    html = (out / "index.html").read_text(encoding="utf-8")
    nav = html[html.index("<nav") : html.index("</nav>")]
    assert all(escape(experiment.title, quote=False) in unescape(nav) for experiment in EXPERIMENTS.values())
    headings = re.findall(r"<h3>(.*?)</h3>\n<p class=\"title\">(.*?)</p>", html)
    assert len(headings) == len(EXPERIMENTS)
    for finding, title in headings:
        assert re.search(r"is best|matched or beaten|No row is best", finding), title
