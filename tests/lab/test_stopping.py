"""SIGTERM and Ctrl-C at the two ends of a command: while it starts, and while its process leaves."""

import signal
import subprocess
import sys

import pytest

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
