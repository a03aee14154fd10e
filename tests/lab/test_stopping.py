"""SIGTERM and Ctrl-C at the two ends of a command: while it starts, and while its process leaves."""

import signal
import subprocess
import sys

import pytest
import torch

from ogd.lab.cli import main

STARTING = """
import os, signal, sys

class Stop:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Stop())
from ogd.lab.cli import main
main(["list"])
"""
IMPORTING = """
import os, signal, sys
from ogd.lab.cli import main

which, began = signal.Signals[sys.argv[1]], False
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has none

def profile(frame, event, function):
    global began
    began = began or event == "c_call" and function.__name__ == "_c10d_init"
    if began and event == "call":
        sys.setprofile(None)
        os.kill(os.getpid(), which)

sys.setprofile(profile)
main(["list", "--plugin", sys.argv[2]])
"""
LEAVING = """
import atexit, os, signal, sys
from ogd.lab.cli import main

which = signal.Signals[sys.argv.pop()]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has none
atexit.register(lambda: os.kill(os.getpid(), which) or sum(range(10**6)))
main()
"""


def python(script, *arguments):
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["ogd.lab.cli.parser", "ogd.lab.catalogue", "argparse"])
def test_sigterm_while_it_starts_is_one_line(module):
    done = python(STARTING, module)
    assert (done.returncode, done.stderr) == (143, "ogd: interrupted\n")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has not the part that is interrupted")
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_waits_until_pytorch_is_imported(tmp_path, name, code):
    """C++ that runs Python aborts if a signal raises an exception there."""
    plugin = tmp_path / "plugin.py"
    plugin.write_text("import torch")
    done = python(IMPORTING, name, str(plugin))
    assert (done.returncode, done.stderr) == (code, "ogd: interrupted\n")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize(("arguments", "said"), [(["list"], ""), (["no"], "ogd: ")])
def test_a_signal_while_it_leaves_is_no_traceback(name, arguments, said):
    done = python(LEAVING, *arguments, name)
    assert done.returncode == -signal.Signals[name]
    assert done.stderr.startswith(said)
    assert "Traceback" not in done.stderr


def test_whoever_calls_main_gets_their_signals_back(capsys):
    before = [signal.getsignal(which) for which in (signal.SIGTERM, signal.SIGINT)]
    main(["list"])
    assert [signal.getsignal(which) for which in (signal.SIGTERM, signal.SIGINT)] == before
    assert capsys.readouterr().out
