"""Projection on a language model, with thousands of directions, one per token; `--show` prints the last measurement.

    python measurements/text/projected.py          trains what the record lacks, on one thread: results/projected.json
    python measurements/text/projected.py --show   prints that record as Markdown

A GPT-2 of two layers reads letters: first the sources of Python's standard library, then Python's C headers, both as
they come with the interpreter. A tenth of the files is held out. Loss is in nats per letter. A `GradientMemory` keeps
the log-probabilities of 8 letters in each of 256 passages of the first text, 2,048 directions.
"""

import hashlib
import json
import statistics
import sys
import sysconfig
from pathlib import Path
from typing import Any

from ogd import json_files

RECORD = Path(__file__).parents[2] / "results" / "projected.json"
SEEDS = (0, 1, 2)
LENGTH, BATCH, FIRST, SECOND, RATE = 64, 32, 1000, 250, 2e-3
PASSAGES, PLACES, EVERY = 256, 8, 10  # 2,048 directions; steps that share a projection
# label, factor of the learning rate, softness of a GradientMemory
WAYS: dict[str, tuple[str, float, float | None]] = {
    "plain": ("no protection", 1, None),
    "slower": ("no protection, a tenth of the learning rate", 0.1, None),
    "examples": ("`ExampleMemory(model)`", 1, None),
    "0": ("`GradientMemory`, softness 0", 1, 0.0),
    "0.05": ("`GradientMemory`, softness 0.05", 1, 0.05),
    "0.5": ("`GradientMemory`, softness 0.5", 1, 0.5),
}


def text(name: str) -> tuple[Any, Any]:
    """The letters of the training files and of the held-out files, as numbers below 128."""
    import torch

    folder, pattern = Path(sysconfig.get_path(name)), {"stdlib": "*.py", "include": "**/*.h"}[name]
    files = [file.read_text(encoding="utf-8", errors="replace") for file in sorted(folder.glob(pattern))]
    parts = ["".join(files[i] for i in range(len(files)) if (i % 10 == 0) == held_out) for held_out in (False, True)]
    training, held_out = (torch.tensor(list(part.encode("ascii", "replace"))) for part in parts)
    return training, held_out


def passages(letters: Any, n: int, generator: Any) -> Any:
    """n passages of a text, drawn at random, (n, LENGTH)."""
    import torch

    starts = torch.randint(len(letters) - LENGTH, (n, 1), generator=generator)
    return letters[starts + torch.arange(LENGTH)]


def token_directions(z: Any, y: Any) -> Any:
    """The log-probabilities of PLACES letters of each passage, (B, PLACES)."""
    import torch

    places = torch.linspace(LENGTH // PLACES, LENGTH - 1, PLACES).long()
    return z[:, places - 1].log_softmax(-1).gather(-1, y[:, places].unsqueeze(-1)).squeeze(-1)


def loss_on(model: Any, rows: Any) -> float:
    import torch

    model.eval()
    with torch.no_grad():
        found = [float(model(input_ids=some, labels=some).loss) for some in rows.split(256)]
    model.train()
    return statistics.mean(found)


def learn(model: Any, letters: Any, optimizer: Any, steps: int, generator: Any) -> None:
    model.train()
    for _ in range(steps):
        some = passages(letters, BATCH, generator)
        optimizer.zero_grad()
        model(input_ids=some, labels=some).loss.backward()
        optimizer.step()


def trained(seed: int) -> dict[str, Any]:
    """The loss on the old text, on its remembered passages and on the new text, for each way."""
    import copy

    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    import ogd

    (old, old_test), (new, new_test) = text("stdlib"), text("include")
    generator = torch.Generator().manual_seed(seed)
    tests = [passages(letters, 2048, generator) for letters in (old_test, new_test)]
    kept = passages(old, PASSAGES, generator)
    torch.manual_seed(seed)
    sizes = {"n_positions": LENGTH, "n_embd": 48, "n_layer": 2, "n_head": 4, "bos_token_id": None, "eos_token_id": None}
    first = GPT2LMHeadModel(GPT2Config(vocab_size=128, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **sizes))
    learn(first, old, torch.optim.AdamW(first.parameters(), RATE), FIRST, generator)
    found = {
        "learned": {"old": loss_on(first, tests[0]), "kept": loss_on(first, kept), "new": loss_on(first, tests[1])}
    }
    for way, (_, factor, softness) in WAYS.items():
        model = copy.deepcopy(first)
        optimizer, memory = torch.optim.AdamW(model.parameters(), factor * RATE), None
        if softness is not None:
            memory = ogd.GradientMemory(model, None, outputs=token_directions, softness=softness)
            memory.protect(optimizer, every=EVERY)
        elif way == "examples":
            memory = ogd.ExampleMemory(model)
            memory.protect(optimizer)
        if memory is not None:
            memory.remember({"input_ids": kept, "labels": kept})
        learn(model, new, optimizer, SECOND, torch.Generator().manual_seed(seed))
        if memory is not None:
            memory.unprotect()
        scores = {"old": loss_on(model, tests[0]), "kept": loss_on(model, kept), "new": loss_on(model, tests[1])}
        found[way] = scores | {"bytes": 0 if memory is None else memory.nbytes}
        print(seed, way, {name: round(value, 3) for name, value in found[way].items()}, flush=True)
    return found


def measure() -> None:
    import torch

    from ogd.files import write_text
    from ogd.lab.records.record import environment

    torch.set_num_threads(1)
    record: dict[str, Any] = {"schema": 1, "runs": {}}
    if RECORD.exists():
        record = json_files.load(RECORD)
    texts = {name: text(name) for name in ("stdlib", "include")}
    record["texts"] = {
        name: {"letters": len(training), "sha256": hashlib.sha256(bytes(training.tolist())).hexdigest()}
        for name, (training, _) in texts.items()
    }
    for seed in SEEDS:
        if str(seed) not in record["runs"]:
            record["runs"][str(seed)] = trained(seed)
            write_text(RECORD, json.dumps({**record, "environment": environment()}, indent=1) + "\n")


def show() -> None:
    """Print the record as a Markdown table."""
    runs = list(json_files.load(RECORD)["runs"].values())

    def cell(way: str, name: str) -> str:
        values = [run[way][name] for run in runs]
        return f"{statistics.mean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")

    print(f"| {len(runs)} seed{'s' * (len(runs) > 1)} | old text | its remembered passages | new text | MB |")
    print("| --- | ---: | ---: | ---: | ---: |")
    print(f"| the old text learned | {' | '.join(cell('learned', name) for name in ('old', 'kept', 'new'))} | |")
    for way, (label, *_) in WAYS.items():
        cells = " | ".join(cell(way, name) for name in ("old", "kept", "new"))
        print(f"| {label} | {cells} | {statistics.mean(run[way]['bytes'] for run in runs) / 1e6:,.0f} |")


if __name__ == "__main__":
    if sys.argv[1:] != ["--show"]:
        measure()
    show()
