"""Contestants at the size of a language model's outputs, and the memory that their training takes."""

import subprocess
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ogd import defaults
from ogd.lab.bench.resident import peak_bytes
from ogd.lab.bench.stopwatch import Contestant
from ogd.lab.records.speed import Ratio
from ogd.memory import ExampleMemory

WORDS, WIDTH, LAYERS, LENGTH, BATCH = 50_257, 256, 4, 64, 16
KEPT = 32  # texts; rehearsal draws as many of them as of any larger number

# key, over, under, what is measured
RATIOS = [
    (
        "lm_rehearsal_overhead",
        "writer rehearsing",
        "writer plain",
        f"a GPT-2 ({LAYERS} layers, {WIDTH} wide, {WORDS:,} words) that rehearses by default, AdamW, {BATCH} texts of "
        f"{LENGTH} tokens at a time, against plain",
    )
]


class Writer(nn.Module):
    """The layers of GPT-2, without dropout."""

    def __init__(self, words: int):
        super().__init__()
        self.words, self.places = nn.Embedding(words, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.later = nn.Buffer(nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers(self.words(x) + self.places.weight, self.later, is_causal=True)
        return F.linear(h, self.words.weight)


def texts(n: int, words: int) -> tuple[Tensor, Tensor]:
    """Random words, and those that follow them."""
    found = torch.randint(words, (n, LENGTH + 1))
    return found[:, :-1], found[:, 1:]


def training(rehearsing: bool, words: int, batch: int) -> Contestant:
    """Return the steps of a training, with one rehearsal or without; a unit is a step."""
    model = Writer(words)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if rehearsing:
        memory = ExampleMemory(model)
        memory.remember(texts(KEPT, words))
        memory.protect(optimizer)
    x, y = texts(batch, words)

    def run() -> float:
        began = time.perf_counter()
        for _ in range(defaults.REHEARSAL_EVERY):
            optimizer.zero_grad()
            F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
            optimizer.step()
        return (time.perf_counter() - began) / defaults.REHEARSAL_EVERY

    return run


def contestants() -> dict[str, Contestant]:
    return {"writer plain": training(False, WORDS, BATCH), "writer rehearsing": training(True, WORDS, BATCH)}


def bytes_ratio() -> Ratio:
    """Bytes of the scores of a text over those that are kept of it, with its tokens."""
    memory = ExampleMemory(Writer(WORDS))
    memory.remember(texts(2, WORDS))
    ratio = 4 * LENGTH * WORDS * len(memory) / memory.nbytes
    meaning = f"the bytes of all scores of a text over {WORDS:,} words, against all that is kept of it"
    return Ratio("lm_bytes_ratio", ratio, ratio, ratio, meaning)


def memory_ratio() -> Ratio:
    """The most memory that a training with rehearsal holds over that of one without, each in its own process."""
    code = f"from {__name__} import peak; print(peak({{}}, {WORDS}, {BATCH}))"
    rehearsing, plain = (
        int(subprocess.run([sys.executable, "-c", code.format(way)], stdout=subprocess.PIPE, check=True).stdout)
        for way in (True, False)
    )
    ratio = rehearsing / plain
    meaning = "the most memory that this training holds, remembering included, against plain, in separate processes"
    return Ratio("lm_rehearsal_memory", ratio, ratio, ratio, meaning)


def peak(rehearsing: bool, words: int, batch: int) -> int:
    """Return the most bytes that this process holds until the first rehearsal is over, without what imports take."""
    torch.set_num_threads(1)
    before = peak_bytes()
    training(rehearsing, words, batch)()
    return peak_bytes() - before
