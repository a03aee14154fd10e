import json
import os
import signal
import subprocess
import sys
import time

import pytest

from ogd.lab import catalogue, cli
from ogd.lab.data.dataset import MNIST

SMALL = ["--runs", "2", "--epochs", "1", "--batch-size", "7", "--hidden", "6"]


def names(method):
    return [option.name for option in method.options]


def run(capsys, *arguments):
    """Run in this process, which has imported torch already."""
    code = 0
    try:
        cli.main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["list"], ["--version"], ["tune", "-h"], []])
def test_what_only_informs_does_not_import_torch(arguments):
    script = f"import sys; from ogd.lab.cli import main\ntry: main({arguments!r})\nexcept SystemExit: pass\n"
    out = subprocess.run(
        [sys.executable, "-c", script + "assert 'torch' not in sys.modules"], capture_output=True, text=True, check=True
    )
    assert out.stdout


def test_list_names_everything(capsys):
    _, out, _ = run(capsys, "list")
    for name in [
        *catalogue.BENCHMARKS,
        *catalogue.METHODS,
        *catalogue.MODELS,
        *catalogue.INITS,
        "mnist",
        "variants-rotated",
        "curves",
        "Table 7",
    ]:
        assert name in out


@pytest.mark.parametrize(
    ("command", "texts"),
    [
        ("run", [*(f"--{name.replace('_', '-')}" for entry in catalogue.METHODS.values() for name in names(entry))]),
        ("run", ["--angles", "split: the classes of each task", "(default: 0.001)", "--optimizer", "(default: 0)"]),
        (
            "run",
            ["ogd, agem, er, der, rehearsal: gradients or examples", "100 100 for mlp, 100 for cnn", "300 on split"],
        ),
        ("tune", ["der (--alpha), rehearsal (--bound), ewc (--ewc-lambda)", "ewc: 1 3 10 30 100 300 1000", "--init"]),
    ],
)
def test_help_has_names_and_defaults_from_the_catalogue(capsys, monkeypatch, command, texts):
    monkeypatch.setenv("COLUMNS", "1000")
    _, out, _ = run(capsys, command, "--help")
    for text in texts:
        assert text in out


@pytest.mark.parametrize("entry", [*catalogue.BENCHMARKS.values(), *catalogue.METHODS.values()])
def test_the_catalogue_leads_somewhere(entry):
    assert callable(entry.load())


@pytest.mark.parametrize(
    ("benchmark", "options"),
    [
        ("permuted", []),
        ("rotated", ["--angles", "-10", "0", "45.5"]),
        ("split", ["--partition", "01234/56789"]),
        ("split", ["--heads", "single", "--tasks", "2", "--curve-every", "2"]),
    ],
)
def test_run_trains_once_and_remembers(tiny_folder, tmp_path, capsys, benchmark, options):
    arguments = ["run", "--benchmark", benchmark, "--method", "sgd", "mtl", *SMALL, *options]
    arguments += ["--data", tiny_folder, "--out", tmp_path]
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert "sgd" in out
    assert "mtl" in out
    files = sorted(tmp_path.rglob("*.json"))
    assert [f.name for f in files] == ["run-0.json", "run-1.json"] * 2
    times = [f.stat().st_mtime_ns for f in files]
    assert run(capsys, *arguments)[:2] == (0, out)
    assert [f.stat().st_mtime_ns for f in files] == times


@pytest.mark.parametrize(
    ("benchmark", "option"),
    [
        ("rotated", ["--seed", "1"]),
        ("permuted", ["--seed", "1"]),
        ("rotated", ["--epochs", "9"]),
        ("rotated", ["--batch-size", "8"]),
        ("rotated", ["--lr", "0.15"]),
        ("rotated", ["--momentum", "0.5"]),
        ("rotated", ["--hidden", "9"]),
        ("rotated", ["--hidden", "9", "5"]),
        ("rotated", ["--angles", "0", "90"]),
        ("split", ["--heads", "single"]),
        ("split", ["--partition", "56789/01234"]),
        ("rotated", ["--init", "he"]),
        ("rotated", ["--optimizer", "adam"]),
        ("rotated", ["--method", "ogd", "--per-task", "3"]),
        ("rotated", ["--method", "ogd", "--outputs", "all"]),
        ("rotated", ["--method", "agem", "--reference-batch", "2"]),
        ("rotated", ["--method", "ewc", "--ewc-lambda", "50"]),
    ],
)
def test_every_option_reaches_the_training(tiny_folder, tmp_path, capsys, benchmark, option):
    def accuracies(*more):
        arguments = ["run", "--benchmark", benchmark, "--runs", 4, "--epochs", 8, "--batch-size", 7, "--hidden", 16]
        arguments += ["--lr", "0.1", "--tasks", "2", "--data", tiny_folder, "--out", tmp_path, "--jobs", 1, "--json"]
        return [record["accuracy"] for record in json.loads(run(capsys, *arguments, *more)[1])]

    plain = option[:2] if option[0] == "--method" else []
    assert accuracies(*plain) != accuracies(*option)


def test_jobs_do_not_change_records(tiny_folder, tmp_path, capsys):
    def accuracies(jobs):
        arguments = ["run", *SMALL, "--method", "sgd", "ogd", "--data", tiny_folder, "--out", tmp_path / str(jobs)]
        return [record["accuracy"] for record in json.loads(run(capsys, *arguments, "--json", "--jobs", jobs)[1])]

    assert accuracies(1) == accuracies(2)


def test_a_failed_unit_does_not_keep_the_others_from_going_on(tiny_folder, tmp_path, capsys):
    arguments = ["run", *SMALL, "--method", "ewc", "sgd", "--ewc-lambda", "1e30", "--lr", "0.5", "--data", tiny_folder]
    code, out, err = run(capsys, *arguments, "--out", tmp_path)
    assert code == 1
    assert "1 training failed; what is finished is kept:" in err
    assert "sgd" in out  # whose runs are all there; no line has a mean of fewer runs than asked for
    assert "ewc" not in out
    assert "rotated ewc: Diverged: the weights of run 0, 1 are not finite: ewc (λ = 1e+30) at lr 0.5" in err
    assert {path.parent.name.split("-")[1] for path in tmp_path.rglob("*.json")} == {"sgd"}


def test_a_read_only_folder_that_has_everything_will_do(tiny_folder, tmp_path, capsys, monkeypatch):
    arguments = ["run", *SMALL, "--data", tiny_folder, "--out", tmp_path]
    _, out, _ = run(capsys, *arguments)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    assert run(capsys, *arguments)[1] == out
    assert "--out: cannot write to" in run(capsys, *arguments, "--seed", "5")[2]


def test_output_that_cannot_show_every_character(tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for arguments in (["list"], ["run", "--help"]):
        command = [sys.executable, "-m", "ogd", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        assert "rotated" in done.stdout


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m ogd list | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("benchmarks\n", "")


def test_methods_share_their_first_task(tiny_folder, tmp_path, capsys):
    def records(out, *methods):
        arguments = ["run", *SMALL, "--tasks", 3, "--data", tiny_folder, "--out", out, "--json"]
        found = json.loads(run(capsys, *arguments, "--method", *methods)[1])
        return {(r["request"]["method"], r["run"]): r["accuracy"] for r in found}

    methods = ["ogd", "agem", "ewc", "sgd", "mtl"]
    together = records(tmp_path / "together", *methods)
    for method in methods:
        assert records(tmp_path / "alone", method).items() <= together.items()


def test_more_runs_only_add_runs(tiny_folder, tmp_path, capsys):
    def accuracies(runs):
        arguments = [
            "run",
            *SMALL[2:],
            "--runs",
            runs,
            "--tasks",
            2,
            "--data",
            tiny_folder,
            "--out",
            tmp_path,
            "--json",
        ]
        return [record["accuracy"] for record in json.loads(run(capsys, *arguments)[1])]

    one = accuracies(1)
    three = accuracies(3)
    assert three[:1] == one
    assert len(three) == 3
    for path in tmp_path.rglob("*.json"):
        path.unlink()
    assert accuracies(3) == three


def test_json_is_the_records(tiny_folder, tmp_path, capsys):
    _, out, _ = run(capsys, "run", *SMALL, "--data", tiny_folder, "--out", tmp_path, "--json")
    written = [json.loads(path.read_text()) for path in sorted(tmp_path.rglob("*.json"))]
    assert json.loads(out) == written
    assert written[0]["request"]["data"] == "tiny"
    assert str(tiny_folder.parent) not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--benchmark", "rotatd"], "--benchmark: there is no 'rotatd'; did you mean 'rotated'?"),
        (["run", "--method", "sdg"], "--method: there is no 'sdg'; did you mean 'sgd'?"),
        (
            ["run", "--method", "xyz"],
            "--method: there is no 'xyz'; it is one of mtl, ogd, agem, er, der, rehearsal, ewc, gpm, sgd",
        ),
        (["run", "--tasks", "0"], "--tasks: must be at least 1, not 0"),
        (["run", "--runs", "0"], "--runs: must be at least 1, not 0"),
        (["run", "--runs", "two"], "--runs: must be a whole number, not 'two'"),
        (["run", "--epochs", "-1"], "--epochs: must be at least 1, not -1"),
        (["run", "--seed", "-1"], "--seed: must be at least 0, not -1"),
        (["run", "--lr", "nan"], "--lr: must be a positive number, not nan"),
        (["run", "--hidden", "0"], "--hidden: must be at least 1, not 0"),
        (["run", "--benchmark", "split", "--partition", "01/12"], "--partition: 01/12 repeats class 1"),
        (["run", "--benchmark", "split", "--partition", "01/23"], "--partition: 01/23 misses classes 4, 5, 6, 7, 8, 9"),
        (["run", "--angles", "0", "10", "--tasks", "3"], "--angles: 2 angles do not make 3 tasks"),
        (["run", "--angles", "0", "--benchmark", "split"], "--angles: is for benchmark 'rotated', not 'split'"),
        (["run", "--batch-size", "60001"], "--batch-size: 60001 is above the 60,000 training examples"),
        (["run", "--benchmark", "split", "--batch-size", "12000"], "--batch-size: 12000 is above the 11,"),
        (["run", "--data", "nowhere"], "--data: there is no folder 'nowhere'"),
        (["run", "--data", ""], "--data: there is no folder ''"),
        (["report", __file__], "is a file; give the folder that holds records"),
        (["run", "--runs", "99999999999"], "--runs: must be at most 100,000"),
        (["run", "--jobs", "0"], "--jobs: must be at least 1, not 0"),
        (["run", "--out", "/dev/null/x"], "--out: cannot write to /dev/null/x"),
        (
            ["run", "--method", "sgd", "--storage", "9"],
            "--per-task: is for ogd and agem and er and der and rehearsal, not for sgd",
        ),
        (["run", "--method", "ogd", "--every", "0"], "--project-every: must be at least 1, not 0"),
        (
            ["run", "--method", "ogd", "--every", "5", "--projection", "implicit"],
            "--projection: 'implicit' is for model mlp",
        ),
        (["run", "--method", "ogd", "--logits", "tru"], "--outputs: there is no 'tru'; did you mean 'true'?"),
        (["run", "--method", "ewc", "--ewc-lambda", "-1"], "--ewc-lambda: must be a number of at least 0, not -1.0"),
        (["run", "--momentum", "1"], "--momentum: must be a number of at least 0 and below 1"),
        (["run", "--optimizer", "adma"], "--optimizer: there is no 'adma'; did you mean 'adam'?"),
        (["run", "--optimizer", "adam", "--momentum", "0.9"], "--momentum: is for optimizer 'sgd', not 'adam'"),
        (["run", "--optimizer", "adam", "--projection", "implicit"], "optimizer adam needs 'explicit'"),
        (["run", "--model", "rnn"], "--model: there is no 'rnn'"),
        (["run", "--model", "cnn", "--hidden", "9", "9"], "--hidden: a cnn has one hidden linear layer, not 2"),
        (["run", "--init", "xavier"], "--init: there is no 'xavier'"),
        (["run", "--benchmark", "split", "--heads", "mutli"], "--heads: there is no 'mutli'; did you mean 'multi'?"),
        (
            ["tune", "agem"],
            "METHOD: agem has no option to choose; ogd, der, rehearsal, ewc have one; see ogd tune --help",
        ),
        (["tune", "deer"], "there is no method 'deer'; did you mean 'der'? See ogd tune --help"),
        (["tune", "ewc", "--grid", "1", "-1"], "--grid: ewc_lambda: must be a number of at least 0"),
        (["tune", "der", "--grid", "1", "1"], "--grid: has a value twice"),
        (["run", "--wrong"], "there is no option '--wrong'; see ogd run --help"),
        (["run", "--methods", "sgd"], "there is no option '--methods'; did you mean '--method'? See ogd run --help"),
        (["run", "sgd"], "unexpected 'sgd'; see ogd run --help"),
        (["reproduce", "table9"], "NAME: there is no 'table9'; `ogd list` shows all tables and figures"),
        (["reproduce", "rotatedd"], "NAME: there is no 'rotatedd'; did you mean 'rotated'?"),
        (["reproduce", "rotated", "--runs", "0"], "--runs: must be at least 1, not 0"),
        (["reproduce", "worlds"], "`ogd data fashion --out data/fashion` writes it, and --data data/fashion reads it"),
        (["reproduce", "rotated", "--data", str(MNIST)], "holds mnist, which none of these tables and figures needs"),
        (["reproduce"], "the following arguments are required: NAME"),
        (["runn"], "there is no command 'runn'; did you mean 'run'? See ogd --help"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("ogd: ")
    assert message in err
    assert not list(tmp_path.rglob("*.json"))


def test_reproduce_shows_the_paper_s_numbers_and_does_not_repeat_itself(tmp_path, capsys, monkeypatch):
    arguments = ["reproduce", "split", "--quick", "--runs", "1", "--out", tmp_path]
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert "88.2 ± 5.9" in out
    assert "quick profile" in out
    assert all(label in out for label in ("OGD", "A-GEM", "ER", "DER++", "EWC", "SGD", "MTL"))
    monkeypatch.setattr("ogd.lab.experiments.dispatch.dispatch", None)
    assert run(capsys, *arguments)[1] == out
    assert len(json.loads(run(capsys, *arguments, "--json")[1])) == 8


def test_a_diverged_run_is_an_error_and_leaves_no_record(tiny_folder, tmp_path, capsys):
    code, _, err = run(capsys, "run", *SMALL, "--lr", "1e30", "--data", tiny_folder, "--out", tmp_path)
    assert code == 1
    assert "the weights of run 0, 1 are not finite: ogd at lr 1e+30" in err or "sgd at lr 1e+30" in err
    assert not list(tmp_path.rglob("*.json"))


def test_ctrl_c_says_how_to_go_on(tmp_path):
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a background job does not
    script = f"{listen}; from ogd.lab.cli import main; main(['run', '--runs', '1', '--out', {str(tmp_path)!r}])"
    arguments, env = [sys.executable, "-c", script], {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=env)
    ends = time.monotonic() + 90
    while not list(tmp_path.rglob("checkpoint-*")) and time.monotonic() < ends:  # it trains by then
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "run the same command again to resume" in err
    assert "Traceback" not in err


def test_bench_prints_its_ratios(tmp_path, monkeypatch, capsys):
    for number in ("ROUNDS", "LOOP_ROUNDS", "LOOP_TURNS", "LARGE_ROUNDS"):
        monkeypatch.setattr(f"ogd.lab.bench.{number}", 1)
    monkeypatch.setattr("ogd.lab.bench.laboratory.DIRECTIONS", 200)
    monkeypatch.setattr("ogd.lab.bench.sizes.DIRECTIONS", 3)
    monkeypatch.setattr("ogd.lab.bench.sizes.BATCH", 2)
    monkeypatch.setattr("ogd.lab.bench.language_model.WORDS", 5_000)
    found = json.loads(run(capsys, "bench", "--json")[1])
    assert found["lockstep_sgd_speedup"] > 1
    assert found["lm_bytes_ratio"] > 100
    assert found["lm_rehearsal_overhead"] > 1
    _, out, _ = run(capsys, "bench", "--save", tmp_path / "speed.json")
    assert "lockstep_sgd_speedup" in out
    assert run(capsys, "bench", "--show", tmp_path / "speed.json") == (0, out, "")
    (tmp_path / "speed.json").write_text('{"schema": 7}')
    code, _, err = run(capsys, "bench", "--show", tmp_path / "speed.json")
    assert (code, err.count("\n")) == (2, 1)
    assert "has schema 7, which this ogd" in err


def test_a_cnn_is_refused_too_small_images_before_work_begins(tiny_folder, tmp_path, capsys):
    code, _, err = run(capsys, "run", "--model", "cnn", "--data", tiny_folder, "--out", tmp_path / "none")
    assert code == 2
    assert err == "ogd: --model: a cnn takes images from 8 × 8 pixels on, not 6 × 5\n"
    assert not (tmp_path / "none").exists()


def test_a_curve_without_a_point_is_a_record_that_can_be_read(tiny_folder, tmp_path, capsys):
    arguments = ["run", *SMALL, "--tasks", 2, "--data", tiny_folder, "--out", tmp_path, "--curve-every", 1000]
    first = run(capsys, *arguments)
    assert first[0] == 0
    assert run(capsys, *arguments)[:2] == first[:2]


@pytest.mark.parametrize("benchmark", ["rotated", "permuted", "split"])
@pytest.mark.parametrize("tasks", ["1000000000", "301"])
def test_too_many_tasks_are_refused_at_once(capsys, tmp_path, benchmark, tasks):
    code, _, err = run(capsys, "run", "--benchmark", benchmark, "--tasks", tasks, "--out", tmp_path)
    assert (code, err) == (2, f"ogd: --tasks: must be at most 300, not {int(tasks):,}\n")
    code, _, err = run(capsys, "run", "--angles", *range(301), "--out", tmp_path)
    assert (code, err) == (2, "ogd: --angles: must be at most 300, one per task, not 301\n")


def test_a_curve_of_too_many_points_is_refused(capsys, tmp_path, tiny_folder):
    command = ["run", "--data", tiny_folder, *SMALL, "--tasks", "2", "--out", tmp_path, "--curve-every", "1"]
    code, _, err = run(capsys, *command, "--epochs", "10000")
    assert code == 2
    assert err.startswith("ogd: --curve-every: must be at least 4 for 180,000 steps and 2 tasks")


@pytest.mark.parametrize(("method", "name"), [("er", "--replay-batch"), ("agem", "--reference-batch")])
def test_a_batch_that_would_take_all_memory_is_refused(capsys, tmp_path, method, name):
    code, _, err = run(capsys, "run", "--method", method, name, 10**6, "--out", tmp_path)
    assert (code, err) == (2, f"ogd: {name}: must be at most 10,000, not 1,000,000\n")


@pytest.mark.parametrize(
    ("command", "argument"),
    [
        (["run", "--out", ""], "--out"),
        (["run", "--out="], "--out"),
        (["run", "--tensorboard", ""], "--tensorboard"),
        (["reproduce", "rotated", "--out", ""], "--out"),
        (["tune", "ewc", "--out", ""], "--out"),
        (["report", ""], "DIR"),
        (["report", "--out", ""], "--out"),
        (["verify", ""], "DIR"),
        (["data", "flights", "--out", ""], "--out"),
        (["data", "flights", "--out", "a", "--archive", ""], "--archive"),
        (["bench", "--save", ""], "--save"),
        (["bench", "--show", ""], "--show"),
    ],
)
def test_an_empty_path_is_not_the_current_folder(capsys, tmp_path, monkeypatch, command, argument):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *command)
    assert (code, out) == (2, "")
    assert err == f"ogd: {argument}: must not be empty; for the current folder give .; see ogd {command[0]} --help\n"
    assert not list(tmp_path.iterdir())
