"""`python -m ogd.lab.worker DRIVER`: carries out calls for a driver on this machine, and is gone when the driver is.

It reads the path of a pickled call from its standard input, writes the answer beside it, and says so on its standard
output, until there is nothing more to read. Whether the driver still lives is looked at before anything slow is
imported: a driver that is killed while its workers start leaves none behind.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

BEAT = 0.5  # seconds between two looks at the driver
DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


def follow(driver: int) -> None:
    """Exit soon after the driver does; at once on Linux."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != driver:  # it was killed before
        os._exit(1)

    def watch() -> None:
        while os.getppid() == driver:
            time.sleep(BEAT)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Answer calls until standard input ends."""
    follow(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's; it ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    says = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what the work prints must not be taken for an answer

    import pickle
    import warnings
    from pathlib import Path

    warnings.formatwarning = lambda message, *_: f"ogd: {message}\n"

    for line in sys.stdin.buffer:
        path = Path(os.fsdecode(line.rstrip(b"\n")))
        try:
            function, arguments = pickle.loads(path.read_bytes())
            answer = pickle.dumps((True, function(*arguments)))
        except Exception as error:
            answer = pickle.dumps((False, f"{type(error).__name__}: {error}"))
        path.with_suffix(".answer").write_bytes(answer)
        says.write(b"done\n")


if __name__ == "__main__":
    main()
