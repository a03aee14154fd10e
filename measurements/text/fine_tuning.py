"""A language model fine-tuned on a second text, with and without protection; `--show` prints the last measurement.

    python measurements/text/fine_tuning.py          trains what the record lacks, or has with other defaults of a
                                                     memory, on one thread, and writes
                                                     results/language_models.json; needs `pip install -c
                                                     constraints.txt 'ogd[hf]' peft`
    python measurements/text/fine_tuning.py --show   prints that record as Markdown

The first text is the source code of Python's standard library without its tests, the second the C++ headers that come
with PyTorch. Both are on every machine that runs this, in the versions that the record names. Every tenth file is held
out. A byte-level BPE of 5,000 words is trained on both texts. The model is a Llama of 4 layers, 128 wide, with 1.5
million weights. It learns the first text from nothing, and is then fine-tuned on the second: all its weights, or LoRA
of rank 16 in all linear layers. An example has 32 tokens, a batch 16 examples. Both trainings do what Trainer does by
default: AdamW, a learning rate that falls to 0, gradients clipped at 1.

200 examples of the first text are kept. ER by hand adds 8 of them to each new batch, which are as many as the 16 at
every second step that `ExampleMemory` rehearses by default. A loss is the mean cross-entropy per token on 256 held-out
examples, in nats.
"""

import copy
import json
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ogd import json_files

RECORD = Path(__file__).parents[2] / "results" / "language_models.json"
SEEDS, WORDS, LENGTH, BATCH, EXAMPLES, TESTS = (0, 1, 2), 5_000, 32, 16, 14_400, 256
FIRST_STEPS, FIRST_RATE, STEPS, RATES = 500, 2e-3, 60, {"full": 1e-3, "lora": 3e-3}
KEPT, REPLAYED = 200, 8
MANY = 13_200  # examples that take as many bytes, in int16, as ExampleMemory's 200 with their outputs
ROUNDS = 9
KINDS = {"full": "all weights", "lora": "LoRA"}
WAYS = {
    "plain": "nothing",
    "low": "a tenth of the learning rate",
    "er": "ER by hand",
    "many": f"ER by hand, {MANY:,} examples",
    "osf": "peft's OSF",
    "examples": "`ExampleMemory(model)`",
    "gradients": "`GradientMemory(model, per_task=200, outputs=next_tokens)`, `every=1`",
}
ROWS = [(kind, way) for kind in KINDS for way in WAYS if kind == "full" or way not in ("many", "osf")]


def files(text: int) -> Iterator[Path]:
    """The files of the first text (0) or the second (1), in one order everywhere."""
    import torch

    folder = Path(torch.__file__).parent / "include" / "torch" if text else Path(sysconfig.get_paths()["stdlib"])
    without = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    found = [p for p in folder.rglob("*.h" if text else "*.py") if not without & set(p.relative_to(folder).parts)]
    yield from sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def tokens() -> tuple[list[tuple[Any, Any]], list[int]]:
    """The tokens of each text, its training files and its held-out files in rows of LENGTH; and the texts' bytes."""
    import torch
    from tokenizers import ByteLevelBPETokenizer

    texts = [[path.read_text("utf-8", "replace") for path in files(text)] for text in (0, 1)]
    parts = [([t for i, t in enumerate(ts) if i % 10], ts[::10]) for ts in texts]
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([t for train, _ in parts for t in train[::8]], WORDS, show_progress=False)

    def rows(part: list[str], at_most: int) -> Any:
        encoded = [i for one in tokenizer.encode_batch(part) for i in one.ids]
        found = torch.tensor(encoded[: len(encoded) // LENGTH * LENGTH]).view(-1, LENGTH)
        return found[torch.randperm(len(found), generator=torch.Generator().manual_seed(0))[:at_most]]

    found = [(rows(train, EXAMPLES), rows(test, TESTS)) for train, test in parts]
    return found, [sum(len(t.encode()) for t in ts) for ts in texts]


def llama(seed: int) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, tie_word_embeddings=True, **sizes)
    )


def loss_of(model: Any, x: Any) -> Any:
    return model(input_ids=x, labels=x).loss


def test_losses(model: Any, texts: list[tuple[Any, Any]]) -> list[float]:
    import torch

    model.eval()
    with torch.no_grad():
        found = [statistics.mean(float(loss_of(model, x)) for x in test.split(32)) for _, test in texts]
    model.train()
    return found


def optimizer_of(model: Any, rate: float, steps: int, warm: int = 0) -> tuple[Any, Any]:
    import torch

    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate, weight_decay=0.0)
    falling = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / (warm + 1), (steps - step) / (steps - warm))
    )
    return optimizer, falling


def take_step(model: Any, optimizer: Any, falling: Any, x: Any, old: Any = None) -> None:
    import torch

    optimizer.zero_grad()
    loss = loss_of(model, x)
    if old is not None:
        loss = loss + loss_of(model, old)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    falling.step()


def batches(x: Any, seed: int, steps: int) -> Iterator[Any]:
    import torch

    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    yield from (x[order[BATCH * i % (len(x) - BATCH) :][:BATCH]] for i in range(steps))


def learned(texts: list[tuple[Any, Any]], seed: int) -> Any:
    """Return a model that has learned the first text from nothing."""
    model = llama(seed)
    optimizer, falling = optimizer_of(model, FIRST_RATE, FIRST_STEPS, warm=50)
    for x in batches(texts[0][0], seed, FIRST_STEPS):
        take_step(model, optimizer, falling, x)
    return model


def prepared(model: Any, texts: list[tuple[Any, Any]], kind: str, way: str, seed: int) -> tuple[Any, Any, int]:
    """Return a copy of the model in its form for fine-tuning, a step of fine-tuning, and the bytes that are kept."""
    import torch
    from peft import LoraConfig, OSFConfig, TaskType, get_peft_model
    from torch.utils.data import DataLoader

    import ogd
    from ogd.integrations.transformers import next_tokens

    torch.manual_seed(seed)
    model, old, drawing = copy.deepcopy(model), texts[0][0], torch.Generator().manual_seed(seed)
    if kind == "lora":
        config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type=TaskType.CAUSAL_LM)
        model = get_peft_model(model, config)
    elif way == "osf":
        model = get_peft_model(model, OSFConfig(target_modules="all-linear", task_type=TaskType.CAUSAL_LM))
    optimizer, falling = optimizer_of(model, RATES[kind] * (0.1 if way == "low" else 1), STEPS)
    kept, memory = old[:0], None
    if way in ("er", "many"):
        kept = old[torch.randperm(len(old), generator=drawing)[: MANY if way == "many" else KEPT]]
    elif way in ("examples", "gradients"):
        if way == "examples":
            memory = ogd.ExampleMemory(model)
        else:
            memory = ogd.GradientMemory(model, per_task=KEPT, outputs=next_tokens)
        memory.remember(DataLoader([{"input_ids": x, "labels": x} for x in old], BATCH))
        memory.protect(optimizer, **({} if way == "examples" else {"every": 1}))

    def step(x: Any) -> None:
        some = kept[torch.randint(len(kept), (REPLAYED,), generator=drawing)] if len(kept) else None
        take_step(model, optimizer, falling, x, some)

    return model, step, len(kept) * LENGTH * 2 if memory is None else memory.nbytes


def fine_tuned(model: Any, texts: list[tuple[Any, Any]], kind: str, way: str, seed: int) -> dict[str, Any]:
    model, step, kept = prepared(model, texts, kind, way, seed)
    for x in batches(texts[1][0], seed, STEPS):
        step(x)
    return {"losses": test_losses(model, texts), "bytes": kept}


def seconds(texts: list[tuple[Any, Any]]) -> dict[str, list[float]]:
    """The processor's seconds of two steps of each row, in alternation; `ExampleMemory` rehearses in one of two."""
    steps: dict[str, Callable[[Any], None]] = {}
    found: dict[str, list[float]] = {}
    for kind, way in ROWS:
        steps[f"{kind} {way}"] = prepared(llama(0), texts, kind, way, 0)[1]
    data = list(batches(texts[1][0], 0, 2))
    for number in range(ROUNDS + 1):
        for name, step in steps.items():
            began = time.process_time()
            for x in data:
                step(x)
            if number:
                found.setdefault(name, []).append(time.process_time() - began)
    return found


def import_torchvision() -> None:
    """Let transformers import a torchvision whose operators do not load."""
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    import torchvision_operators  # noqa: F401


def peak(kind: str, way: str) -> int:
    """The bytes that this process holds at most for 4 steps of a row, without what the imports take."""
    import_torchvision()
    import peft  # noqa: F401
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401

    import ogd.integrations.transformers  # noqa: F401
    from ogd.lab.bench.resident import peak_bytes

    torch.set_num_threads(1)
    texts = [(torch.randint(WORDS, (EXAMPLES, LENGTH)), None)] * 2
    before = peak_bytes()
    _, step, _ = prepared(llama(0), texts, kind, way, 0)
    for x in batches(texts[1][0], 0, 4):
        step(x)
    return peak_bytes() - before


def measure() -> None:
    import torch

    import ogd
    from ogd.files import write_text
    from ogd.lab.progress import Display
    from ogd.lab.records.record import environment

    sys.path.append(str(Path(__file__).parents[1]))
    import defaults

    import_torchvision()

    torch.set_num_threads(1)
    texts, sizes = tokens()
    today = {"examples": defaults.of(ogd.ExampleMemory), "gradients": defaults.of(ogd.GradientMemory, "paper")}
    record: dict[str, Any] = {"schema": 1, "runs": {}, "peaks": {}}
    if RECORD.exists():
        record = json_files.load(RECORD)

    def keep(part: str, key: str, value: Any) -> None:
        packages = {name: version(name) for name in ("transformers", "peft", "tokenizers")}
        record.setdefault(part, {})[key] = value
        record.update(bytes=sizes, environment={**environment(), **packages})
        write_text(RECORD, json.dumps(record, indent=1) + "\n")

    for seed in SEEDS:
        found = {row: record["runs"].get(f"{' '.join(row)} {seed}") for row in ROWS}
        missing = [row for row, run in found.items() if not run or run.get("defaults", {}) != today.get(row[1], {})]
        if not missing:
            continue
        with Display(f"fine-tuning, seed {seed}") as display:
            display.start(len(missing) + 1)
            model = learned(texts, seed)
            keep("runs", f"first {seed}", {"losses": test_losses(model, texts), "bytes": 0})
            display.advance(1, "first text")
            for kind, way in missing:
                run = fine_tuned(model, texts, kind, way, seed)
                keep("runs", f"{kind} {way} {seed}", {**run, "defaults": today[way]} if way in today else run)
                display.advance(1, f"{kind} {way}")
    for kind, way in ROWS:
        if f"{kind} {way}" not in record["peaks"]:
            command = [sys.executable, __file__, "--peak", kind, way]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            keep("peaks", f"{kind} {way}", int(done.stdout))
    if "seconds" not in record:
        for name, found in seconds(texts).items():
            keep("seconds", name, found)


def cells(found: list[list[float]]) -> list[str]:
    """Mean ± standard deviation of the loss on the old text, on the new one, and of the mean of both."""
    columns = [*zip(*found, strict=True), [statistics.mean(losses) for losses in found]]
    return [f"{statistics.mean(column):.2f} ± {statistics.stdev(column):.2f}" for column in columns]


def show() -> None:
    """Print the record as Markdown."""
    record = json_files.load(RECORD)
    runs, times, peaks = record["runs"], record.get("seconds", {}), record["peaks"]
    print("| trained | against forgetting | old text | new text | mean | time | memory | kept |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    first = cells([runs[f"first {seed}"]["losses"] for seed in SEEDS])
    print(f"| before | | {' | '.join(first)} | | | |")
    for kind, title in KINDS.items():
        ways = [way for one, way in ROWS if one == kind]
        losses = {way: [runs[k]["losses"] for seed in SEEDS if (k := f"{kind} {way} {seed}") in runs] for way in ways}
        best = min(ways, key=lambda way: statistics.mean(map(sum, losses[way])))
        for way in ways:
            name, (old, new, both) = f"{kind} {way}", cells(losses[way])
            pairs = zip(times.get(name, ()), times.get("full plain", ()), strict=True)
            ratios = [a / b for a, b in pairs], [peaks[name] / peaks["full plain"]] if name in peaks else []
            slower, larger = (f"{statistics.median(found):.2f} ×" if found else "–" for found in ratios)
            kept = runs[f"{name} {SEEDS[0]}"]["bytes"]
            print(
                f"| {'' if way != ways[0] else title} | {WAYS[way]} | {old} | {new} "
                f"| {f'**{both}**' if way == best else both} | {slower} | {larger} "
                f"| {f'{kept / 1e6:,.2f} MB' if kept else '–'} |"
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        print(peak(*sys.argv[2:]))
    else:
        if sys.argv[1:] != ["--show"]:
            measure()
        show()
