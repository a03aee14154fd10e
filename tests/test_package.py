"""The package as it is installed: the library alone, the laboratory as an extra, and the shell's completion."""

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ogd
from ogd import json_files
from ogd.lab import PACKAGES
from ogd.lab.cli.parser import COMMANDS, SHELLS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WITHOUT = f"import sys\nfor name in {PACKAGES}: sys.modules[name] = None  # as if it were not installed\n"


def names(requirements):
    return {requirement.partition(">")[0] for requirement in requirements}


def python(script, code=0):
    done = subprocess.run([sys.executable, "-c", WITHOUT + script], check=False, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def test_the_extras_are_what_the_code_says():
    assert names(PROJECT["dependencies"]) == {"torch", "numpy", "safetensors"}
    assert names(PROJECT["optional-dependencies"]["lab"]) == set(PACKAGES)
    assert f"\n## {ogd.__version__} " in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(
    "arguments", [["run"], ["reproduce", "all"], ["report"], ["verify"], ["bench"], ["data", "cifar10", "--out", "x"]]
)
def test_without_the_laboratory_its_commands_say_so_in_one_line(arguments, tmp_path):
    _, said = python(
        f"import os; os.chdir({str(tmp_path)!r})\nfrom ogd.lab.cli import main\nmain({arguments!r})", code=2
    )
    needs = "ogd: the laboratory needs jinja2 and matplotlib and rich, not installed here: pip install 'ogd[lab]'\n"
    assert said == needs
    assert not list(tmp_path.iterdir())


def test_without_the_laboratory_the_rest_of_the_command_line_works():
    shown, _ = python("from ogd.lab.cli import main\nmain(['list'])\nmain([])\nmain(['completion', 'fish'])")
    for text in ("rotated", "train methods on a benchmark", "-l benchmark"):
        assert text in shown


def test_without_the_laboratory_its_modules_name_the_extra():
    python("""
import ogd
from ogd import json_files
try: ogd.lab.reporting
except ModuleNotFoundError as error: assert error.name == "rich" and "ogd.lab.reporting: the lab" in str(error), error
else: raise SystemExit("imported")
""")


def test_the_library_works_without_the_laboratory_and_imports_little_besides_torch():
    shown, _ = python("""
import torch
before = set(sys.modules)
import ogd, ogd.memory, ogd.measuring, ogd.integrations
print(*sorted({name for name in set(sys.modules) - before if not name.startswith("ogd")}))
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
memory = ogd.GradientMemory(model, per_task=5)
memory.protect(optimizer, every=1)
x = torch.randn(5, 4)
memory.remember((x, torch.arange(5) % 3))
(model(x) ** 2).sum().backward()
optimizer.step()
assert len(memory) == 5
""")
    new = shown.split()
    foreign = {name.partition(".")[0] for name in new} - set(sys.stdlib_module_names)
    assert foreign <= {"torch", "numpy", "safetensors"}
    assert not any(name.startswith("torch._dynamo") for name in new)  # it takes as long as torch itself


def test_the_long_description_leads_out_of_the_index(monkeypatch):
    """Every link and the picture are absolute; `python -m build` puts this text into the package."""
    pytest.importorskip("hatchling")  # of the extra `dev`
    monkeypatch.syspath_prepend(str(ROOT))
    hook = importlib.import_module("hatch_build").LongDescription(str(ROOT), {})
    hook.update(metadata := {"urls": PROJECT["urls"], "version": ogd.__version__})
    text = metadata["readme"]["text"]
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert all(link.startswith("https://") for link in links)
    assert f"{PROJECT['urls']['Source']}/raw/v{ogd.__version__}/docs/images/front.svg" in links
    assert "<!--" not in text


def test_python_m_ogd():
    done = subprocess.run([sys.executable, "-m", "ogd", "--version"], check=True, capture_output=True, text=True)
    assert done.stdout == f"ogd {ogd.__version__}\n"


@pytest.fixture(scope="module")
def scripts():
    made = {}
    for shell in SHELLS:
        command = [sys.executable, "-m", "ogd", "completion", shell]
        made[shell] = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return made


@pytest.mark.parametrize(
    ("typed", "offered", "not_offered"),
    [
        ([""], {"run", "report", "completion", "--version"}, {"--benchmark"}),
        (["re"], {"reproduce", "report"}, {"run"}),
        (["run", "--ben"], {"--benchmark"}, {"--runs"}),
        (["run", "--benchmark", ""], {"rotated", "split"}, {"--runs", "ogd"}),
        (["run", "--method", "sgd", "o"], {"ogd"}, {"sgd", "--out"}),
        (["run", "--method", "sgd", "-"], {"--runs", "--out"}, {"ogd"}),
        (["run", "--out", ""], set(), {"rotated", "--runs"}),  # nothing of ours: the shell offers files
        (["reproduce", ""], {"all", "rotated", "--quick"}, {"run"}),
        (["reproduce", "rotated", "board-"], {"board-a"}, {"rotated"}),
        (["reproduce", "--quick", "ro"], {"rotated"}, {"--runs"}),
        (["completion", ""], set(SHELLS), {"run"}),
        (["tune", ""], {"ewc", "der"}, {"sgd"}),
    ],
)
def test_bash_completes(scripts, typed, offered, not_offered):
    words = " ".join(f"'{word}'" for word in ["ogd", *typed])
    script = f'{scripts["bash"]}\nCOMP_WORDS=({words}); COMP_CWORD={len(typed)}; _ogd; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", script], check=True, capture_output=True, text=True)
    found = set(done.stdout.split())
    assert offered <= found
    assert bool(offered) == bool(found)
    assert not not_offered & found
    assert not done.stderr


def test_zsh_has_bash_s_function_and_fish_a_line_per_option(scripts):
    assert scripts["zsh"].endswith(scripts["bash"])
    assert "bashcompinit" in scripts["zsh"].splitlines()[0]
    lines = scripts["fish"].splitlines()
    assert all(line.startswith("complete -c ogd ") for line in lines)
    for command, *_ in COMMANDS:
        assert any(line.endswith(f"-a {command}") for line in lines)
    (line,) = (line for line in lines if "from run'" in line and "-l optimizer" in line)
    assert "-x -a 'sgd adam'" in line


def test_the_recorded_size_is_that_of_this_package():
    """`python -m build --outdir dist && python measurements/package/size.py dist` measures it again."""
    recorded = json_files.load(ROOT / "results" / "package.json")["wheel"]
    files = [path for path in (ROOT / "src" / "ogd").rglob("*.*") if path.is_file() and "__pycache__" not in path.parts]
    assert abs(recorded["files"] - len(files)) < 0.1 * len(files)
    mnist = sum(path.stat().st_size for path in files if path.parent.name == "mnist")
    assert recorded["mnist"] == pytest.approx(mnist, rel=0.01)
    rest = sum(path.stat().st_size for path in files) - mnist
    assert 0.15 * rest < recorded["bytes"] - recorded["mnist"] < 0.75 * rest  # text, compressed
