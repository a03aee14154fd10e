"""What the README's two-line example prints, with its seed and the next four; `--show` prints the last measurement.

python measurements/readme/two_lines.py          runs the README's own code and writes results/two_lines.json
python measurements/readme/two_lines.py --show   prints that record as a sentence
"""

import json
import re
import sys
from pathlib import Path

from ogd import json_files

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "two_lines.json"
SEEDS = range(5)
SEEDED = "torch.manual_seed(0)"


def measure(seed: int) -> dict[str, float]:
    """Run the README's `kept` with another seed."""
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    if block.count(SEEDED) != 1:
        raise ValueError(f"README.md: its example must say {SEEDED} once, so that another seed can take its place")
    code, _, _ = block.replace(SEEDED, f"torch.manual_seed({seed})").partition("\nprint(")
    scope: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), scope)
    kept = scope["kept"]
    assert callable(kept)
    return {"seed": seed, "unprotected": kept(False), "protected": kept(True)}


def show() -> None:
    """Print the record as a sentence."""
    found = json_files.load(RECORD)["runs"]
    first = found[0]
    print(f"It prints `kept without protection: {first['unprotected']:.0%}, with it: {first['protected']:.0%}`.")
    plain, guarded = ([100 * one[name] for one in found] for name in ("unprotected", "protected"))
    spread = [f"{min(part):.0f} to {max(part):.0f} %" for part in (plain, guarded)]
    print(f"With {len(found)} different seeds it is {spread[0]} without protection and {spread[1]} with it.")


def main() -> None:
    from ogd.files import write_text
    from ogd.lab.records.record import environment

    record = {"schema": 1, "runs": [measure(seed) for seed in SEEDS], "environment": environment()}
    write_text(RECORD, json.dumps(record, indent=1) + "\n")
    show()


if __name__ == "__main__":
    show() if sys.argv[1:] == ["--show"] else main()
