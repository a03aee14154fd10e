"""The same records wherever the work is done: in processes, on a real Dask cluster, on a real Ray instance."""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time

import pytest

from ogd.checks import ArgumentError
from ogd.lab.experiments import backends
from test_cli import SMALL, run
from test_resume import wait_for

METHODS = ["--method", "sgd", "ogd", "--lr", "0.5"]


def answers(capsys, folder, out, *options):
    arguments = ["run", *SMALL, *METHODS, "--tasks", "2", "--data", folder, "--out", out, "--json", *options]
    code, printed, err = run(capsys, *arguments)
    assert code == 0, err
    return {(r["request"]["method"], r["run"]): r["accuracy"] for r in json.loads(printed)}


@pytest.fixture
def cluster():
    distributed = pytest.importorskip("distributed", reason="Dask's extra is not installed: pip install 'ogd[dask]'")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as made:
        yield made.scheduler_address


@pytest.mark.filterwarnings("default")
def test_dask(tiny_folder, tmp_path, capsys, cluster):
    here = answers(capsys, tiny_folder, tmp_path / "here", "--jobs", "1")
    there = answers(capsys, tiny_folder, tmp_path / "there", "--backend", "dask", "--address", cluster)
    assert here == there
    assert len(list((tmp_path / "there").rglob("run-*.json"))) == 4
    arguments = ["run", *SMALL, "--method", "ewc", "sgd", "--ewc-lambda", "1e30", "--lr", "0.5", "--data", tiny_folder]
    code, out, err = run(capsys, *arguments, "--backend", "dask", "--address", cluster, "--out", tmp_path / "failed")
    assert code == 1
    assert "Diverged" in err
    assert "sgd" in out


@pytest.mark.filterwarnings("default")
def test_dask_starts_a_cluster_of_this_machine_and_leaves_nothing_behind(tiny_folder, tmp_path, capsys, monkeypatch):
    pytest.importorskip("distributed", reason="Dask's extra is not installed: pip install 'ogd[dask]'")
    here = answers(capsys, tiny_folder, tmp_path / "here", "--jobs", "1")
    for name in ("temporary", "current"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path / "current")
    assert here == answers(capsys, tiny_folder, tmp_path / "there", "--backend", "dask", "--jobs", "2")
    assert not [*(tmp_path / "temporary").iterdir(), *(tmp_path / "current").iterdir()]


@pytest.mark.filterwarnings("default")
def test_nobody_else_can_talk_to_a_cluster_of_this_machine():
    distributed = pytest.importorskip("distributed", reason="Dask's extra is not installed: pip install 'ogd[dask]'")
    with backends._own_cluster(1) as made:
        address = made.scheduler_address
        assert address.startswith("tls://127.0.0.1:")
        server = made.scheduler.http_server
        addresses = [sock.getsockname() for sock in server._sockets.values()]
        assert [host for host, _ in addresses] == ["127.0.0.1"]
        assert addresses[0][1] != 8787
        assert not made.scheduler.http_application.applications
        for strangers in (address, address.replace("tls", "tcp")):
            with pytest.raises((OSError, TypeError)):
                distributed.Client(strangers, timeout=2)


@pytest.mark.filterwarnings("default")
def test_a_cluster_of_one_thread_works_elsewhere():
    distributed = pytest.importorskip("distributed", reason="Dask's extra is not installed: pip install 'ogd[dask]'")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as made:
        with backends.Backend("dask", made.scheduler_address).start() as stream:
            found = list(stream(os.getpid, [()] * 3))
        assert found == [found[0]] * 3
        assert found[0] != os.getpid()


@pytest.mark.filterwarnings("default")
def test_a_dask_cluster_without_workers_left_is_told_of(monkeypatch, capsys):
    distributed = pytest.importorskip("distributed", reason="Dask's extra is not installed: pip install 'ogd[dask]'")
    monkeypatch.setattr(backends, "PATIENCE", 0.1)
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, processes=False) as made,
        distributed.Client(made) as client,
        backends._warn_without_workers(client),
    ):
        for workers in (0, 1, 0):
            made.scale(workers)
            wait_for(lambda count=workers: len(client.nthreads()) == count)
            time.sleep(0.5)
    assert capsys.readouterr().err.count("the Dask cluster has no workers left; waiting for one\n") == 2


def test_ray(tiny_folder, tmp_path, capsys):
    pytest.importorskip("ray", reason="Ray's extra is not installed: pip install 'ogd[ray]'")
    here = answers(capsys, tiny_folder, tmp_path / "here", "--jobs", "1")
    arguments = ["run", *SMALL, *METHODS, "--tasks", "2", "--data", tiny_folder, "--out", tmp_path / "there"]
    command = [sys.executable, "-m", "ogd", *map(str, arguments), "--backend", "ray", "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # Ray leaves threads behind
    assert done.returncode == 0, done.stderr
    assert answers(capsys, tiny_folder, tmp_path / "there") == here
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--backend", "slurm"], "--backend: there is no 'slurm'; it is one of processes, dask, ray"),
        (["--address", "tcp://127.0.0.1:1"], "--address: is for backend 'dask' or 'ray'"),
        (["--jobs", "0"], "--jobs: must be at least 1"),
    ],
)
def test_who_cannot_work_is_said_before_work_begins(tmp_path, capsys, options, message):
    code, _, err = run(capsys, "run", "--out", tmp_path, *options)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_package_that_is_not_installed(tmp_path, capsys, monkeypatch, backend):
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda _: None)
    code, _, err = run(capsys, "run", "--out", tmp_path, "--backend", backend)
    assert code == 2
    assert f"pip install 'ogd[{backend}]'" in err


@pytest.mark.filterwarnings("default")
def test_a_cluster_that_does_not_answer(tiny_folder, tmp_path, capsys, monkeypatch):
    pytest.importorskip("distributed", reason="Dask's extra is not installed: pip install 'ogd[dask]'")
    monkeypatch.setattr(backends, "PATIENCE", 0.5)
    arguments = ["run", *SMALL, "--data", tiny_folder, "--out", tmp_path, "--backend", "dask"]
    code, _, err = run(capsys, *arguments, "--address", "tcp://127.0.0.1:1")
    assert code == 2
    assert "--address: no Dask scheduler answers at 'tcp://127.0.0.1:1'" in err


def test_an_error_about_an_argument_comes_back_whole_from_a_worker():
    error = pickle.loads(pickle.dumps(ArgumentError("epochs", "must be at least 1, not 0")))
    assert (str(error), error.name, error.message) == ("epochs: must be at least 1, not 0", "epochs", str(error)[8:])
