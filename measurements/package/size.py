"""How large the package is, and how long it takes to import; `--show` prints the table of the last measurement.

    python -m build --outdir dist                makes the wheel and the sdist (pip install build)
    python measurements/package/size.py dist     measures them and the imports, and writes results/package.json
    python measurements/package/size.py --show   prints that record as Markdown

Imports are measured in processor time, each in a process of its own, torch and ogd in turn: a busy machine makes them
wait, but hardly makes them work more.
"""

import json
import resource
import statistics
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from ogd import json_files

RECORD = Path(__file__).parents[2] / "results" / "package.json"
ROUNDS = 3
IMPORTS = {"torch": "import torch", "ogd": "import ogd; ogd.Memory"}


def seconds(statement: str) -> float:
    """The processor time of a Python that runs a statement."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def sizes(folder: Path) -> dict[str, object]:
    """The bytes and files of the one wheel and the one sdist in a folder."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as opened:
        inside = {info.filename: info.compress_size for info in opened.infolist()}
    with tarfile.open(sdist) as archive:
        files = sum(member.isfile() for member in archive)
    data = sum(size for name, size in inside.items() if "/mnist/" in name)
    return {
        "wheel": {"bytes": wheel.stat().st_size, "files": len(inside), "mnist": data},
        "sdist": {"bytes": sdist.stat().st_size, "files": files},
    }


def show() -> None:
    """Print the record as Markdown."""
    record = json_files.load(RECORD)
    wheel, sdist = record["wheel"], record["sdist"]
    print("| what | measured |\n| --- | ---: |")
    print(f"| wheel | {wheel['bytes'] / 1e6:.1f} MB, {wheel['files']} files |")
    print(f"| of it MNIST | {wheel['mnist'] / 1e6:.1f} MB |")
    print(f"| sdist, with tests, documents and records | {sdist['bytes'] / 1e6:.1f} MB, {sdist['files']} files |")
    ratios = [times["ogd"] / times["torch"] for times in record["imports"]]
    if ratios:
        spread = f"{min(ratios):.2f} … {max(ratios):.2f}, {len(ratios)} × measured"
        print(f"| `{IMPORTS['ogd']}` over `{IMPORTS['torch']}` | {statistics.median(ratios):.2f} × ({spread}) |")


def main(folder: str) -> None:
    from ogd.files import write_text
    from ogd.lab.records.record import environment

    record = {"schema": 1, **sizes(Path(folder)), "imports": [], "environment": environment()}
    write_text(RECORD, json.dumps(record, indent=1) + "\n")
    for _ in range(ROUNDS):  # each is kept: on a busy machine you may have enough of it
        record["imports"].append({name: seconds(statement) for name, statement in IMPORTS.items()})
        write_text(RECORD, json.dumps(record, indent=1) + "\n")
    show()


if __name__ == "__main__":
    show() if sys.argv[1:] == ["--show"] else main(*sys.argv[1:])
