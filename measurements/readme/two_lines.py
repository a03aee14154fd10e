"""What the README's example prints, with its seed and the next four, and what it would without its second line.

python measurements/readme/two_lines.py          runs the README's own code and writes results/two_lines.json
python measurements/readme/two_lines.py --show   prints that record as Markdown
"""

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from ogd import json_files

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "two_lines.json"
SEEDS = range(5)
SEEDED, PROTECTED = "torch.manual_seed(0)", "memory.protect(optimizer)"


def measure(seed: int) -> dict[str, Any]:
    """Run the README's example with another seed, as it is and without protection."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    block = "\n".join(blocks)
    for line in (SEEDED, PROTECTED):
        if block.count(line) != 1:
            raise ValueError(f"README.md: its example must say {line} once, so that something else can take its place")
    seeded = block.replace(SEEDED, f"torch.manual_seed({seed})")
    printed, upright = output(seeded)
    return {
        "seed": seed,
        "prints": printed,
        "protected": upright,
        "plain": output(seeded.replace(PROTECTED, "pass"))[1],
    }


def output(code: str) -> tuple[str, list[float]]:
    """Return what an example prints, and the scores on upright digits before and after."""
    printed: list[str] = []
    exec(compile(code, "README.md", "exec"), {"print": lambda text: printed.append(str(text))})
    (table,) = printed
    (row,) = [line for line in table.splitlines() if line.startswith("| upright")]
    return table, [float(cell.split()[0]) for cell in row.split("|")[2:4]]


def show() -> None:
    """Print the first run's output, and the mean of all runs."""
    runs = json_files.load(RECORD)["runs"]
    print(f"It prints\n\n{runs[0]['prints']}\n")
    plain, protected = (statistics.mean(run[way][1] for run in runs) for way in ("plain", "protected"))
    kept = f"{protected:.0f} % of the upright digits are still recognised, {plain:.0f} % without line two"
    print(f"Over {len(runs)} seeds {kept}.")


def main() -> None:
    from ogd.files import write_text
    from ogd.lab.records.record import environment

    record = {"schema": 1, "runs": [measure(seed) for seed in SEEDS], "environment": environment()}
    write_text(RECORD, json.dumps(record, indent=1) + "\n")
    show()


if __name__ == "__main__":
    show() if sys.argv[1:] == ["--show"] else main()
