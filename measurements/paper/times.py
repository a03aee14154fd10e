"""How long whole commands take on this machine, from nothing; keep it quiet meanwhile.

python measurements/paper/times.py          measures and writes results/times.json after each command: about 25 minutes
python measurements/paper/times.py --show   prints what is recorded
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ogd import json_files
from ogd.lab.progress import clock

RECORD = Path(__file__).parents[2] / "results" / "times.json"
COMMANDS = ("ogd reproduce permuted rotated split --quick", "ogd reproduce all --quick")


def show() -> None:
    """Print a line per command."""
    record = json_files.load(RECORD)
    print(f"| command | time on {record['cores']} cores |\n| --- | ---: |")
    for measured in record["measured"]:
        print(f"| `{measured['command']}` | {clock(measured['seconds'])} |")


def seconds(command: str) -> float:
    """Return how long a command takes that finds no records."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        arguments = [*command.split()[1:], "--out", folder]
        subprocess.run([sys.executable, "-m", "ogd", *arguments], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began


def main() -> None:
    from ogd.files import write_text
    from ogd.lab.experiments.processes import cores
    from ogd.lab.records.record import environment

    record = {"schema": 1, "cores": cores(), "measured": [], "environment": environment()}
    for command in COMMANDS:
        record["measured"].append({"command": command, "seconds": round(seconds(command), 1)})
        write_text(RECORD, json.dumps(record, indent=1) + "\n")
    show()


if __name__ == "__main__":
    show() if sys.argv[1:] == ["--show"] else main()
