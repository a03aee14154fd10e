"""Two tasks in each framework, with and without protection; `--show` prints the table of the last measurement.

    python measurements/frameworks/frameworks.py          trains, on one thread, and writes results/frameworks.json;
                                                          with names (lightning, avalanche, …) only those rows
    python measurements/frameworks/frameworks.py --show   prints that record as Markdown

Digits: 1,000 images of MNIST upright, then 1,000 turned by 60°, a perceptron 784-100-100-10. Words: sequences of 8
tokens of four topics, then the same words grouped into other topics, a BERT of 2 × 32. Text: two Markov chains on one
alphabet each, a GPT-2 of 2 × 32. Nothing is pretrained. 600 of the first task's 1,000 examples are remembered.
"""

import contextlib
import importlib.metadata
import io
import json
import logging
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ogd import json_files

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "frameworks.json"
SEEDS, STORED, EXAMPLES, LENGTH = (0, 1, 2), 600, 1000, 8
EPOCHS = 6  # of words and text; 5 of digits
STUDENT = 4.303  # of three values, 95 %

# framework, package, what it trains, lines a user adds, what is saved where
ROWS = {
    "lightning": ("Lightning", "lightning", "digits", "2", "in each checkpoint, under `callbacks`"),
    "avalanche": ("Avalanche", "avalanche-lib", "digits", "2", "in `save_checkpoint`'s file, with the plugin"),
    "trainer": ("Trainer, BERT", "transformers", "words", "2", "`checkpoint-N/ogd.safetensors`"),
    "lora": ("Trainer, peft LoRA", "peft", "words", "2", "`checkpoint-N/ogd.safetensors`"),
    "gpt": ("Trainer, GPT-2", "transformers", "text", "2", "`checkpoint-N/ogd.safetensors`"),
    "accelerate": ("Accelerate, BERT", "accelerate", "words", "4", "in `save_state`'s folder"),
}
Scores = tuple[float, float, float]  # task 1 when learned, task 1 at the end, task 2 at the end


def digits(seed: int) -> list[Any]:
    """Two tasks, each its training data and its test data."""
    import torch
    from torch.utils.data import TensorDataset

    from ogd.lab import benchmarks

    made = []
    for task in benchmarks.rotated(angles=[0, 60]).tasks:
        rows = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(seed))[:EXAMPLES]
        train = TensorDataset(task.train.x.flatten(1)[rows], task.train.y[rows])
        test = TensorDataset(task.test.x.flatten(1)[:2000], task.test.y[:2000])
        for part in (train, test):
            part.targets = part.tensors[1].tolist()
        made.append((train, test))
    return made


def words(seed: int) -> list[Any]:
    """A mark of the task, then 7 words, 5 of one topic, the label; each new topic has 2 or 3 words of each old one."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def examples(task: int, groups: torch.Tensor, n: int) -> list[dict[str, Any]]:
        y = torch.randint(4, (n,), generator=generator)
        topics = torch.randint(4, (n, LENGTH - 1), generator=generator)
        topics[:, :5] = y.unsqueeze(1)
        x = 2 + groups[topics, torch.randint(10, topics.shape, generator=generator)]
        x = torch.cat([torch.full((n, 1), task), x], 1)
        return [{"input_ids": a, "attention_mask": torch.ones_like(a), "labels": b} for a, b in zip(x, y, strict=True)]

    first = torch.randperm(40, generator=generator).view(4, 10)
    old = torch.arange(10).div(2.5).long()  # word j of the new topic t is of the old topic t + old[j]
    second = first[(torch.arange(4).unsqueeze(1) + old) % 4, torch.arange(10)]
    return [(examples(i, g, EXAMPLES), examples(i, g, 500)) for i, g in enumerate((first, second))]


def text(seed: int) -> list[Any]:
    """Each task is a Markov chain on 20 tokens of its own; a sequence is its label."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def examples(chain: torch.Tensor, offset: int, n: int) -> list[dict[str, Any]]:
        x = torch.randint(20, (n, 1), generator=generator)
        for _ in range(LENGTH - 1):
            x = torch.cat([x, torch.multinomial(chain[x[:, -1]], 1, generator=generator)], 1)
        return [{"input_ids": a + offset, "labels": a + offset} for a in x]

    chains = [torch.rand(20, 20, generator=generator).pow(12) for _ in range(2)]
    return [(examples(c, 20 * i, EXAMPLES), examples(c, 20 * i, 500)) for i, c in enumerate(chains)]


def measured(model: Any, tasks: list[Any], learn: Callable[[int], None], collate: Any = None) -> Scores:
    """Learn the tasks one after the other."""
    from torch.utils.data import DataLoader

    import ogd

    sets = {str(i): DataLoader(test, 250, collate_fn=collate) for i, (_, test) in enumerate(tasks)}
    learn(0)
    before = ogd.forgetting(model, sets)
    learn(1)
    after = ogd.forgetting(model, sets)
    return before["0"], after["0"], after["1"]


def lightning(seed: int, protected: bool) -> Scores:
    from lightning.pytorch import LightningModule, Trainer
    from torch import nn, optim
    from torch.utils.data import DataLoader

    from ogd.integrations.lightning import OGD
    from ogd.lab.models import mlp
    from ogd.memory import GradientMemory

    class Net(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: Any) -> Any:
            return self.net(x)

        def training_step(self, batch: Any) -> Any:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return optim.SGD(self.parameters(), lr=0.1)

    tasks, model, callbacks = digits(seed), Net(), [OGD(GradientMemory, per_task=STORED, every=1)] if protected else []

    def learn(i: int) -> None:
        options = {"enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = Trainer(max_epochs=5, callbacks=callbacks, accelerator="cpu", logger=False, **options)
        trainer.fit(model, DataLoader(tasks[i][0], 10, shuffle=True))

    return measured(model, tasks, learn)


def avalanche(seed: int, protected: bool) -> Scores:
    from avalanche.benchmarks import nc_benchmark
    from avalanche.training import Naive
    from torch import nn, optim

    from ogd.integrations.avalanche import OGDPlugin
    from ogd.lab.models import mlp
    from ogd.memory import GradientMemory

    tasks, model = digits(seed), mlp()
    trains, tests = ([task[i] for task in tasks] for i in range(2))
    options = {"one_dataset_per_exp": True, "class_ids_from_zero_in_each_exp": True, "shuffle": False}
    stream = nc_benchmark(trains, tests, n_experiences=2, task_labels=False, **options).train_stream
    strategy = Naive(
        model=model, optimizer=optim.SGD(model.parameters(), lr=0.1), criterion=nn.CrossEntropyLoss(), train_mb_size=10,
        train_epochs=5, evaluator=None,
        plugins=[OGDPlugin(GradientMemory, per_task=STORED, every=1)] if protected else [],
    )  # fmt: skip
    return measured(model, tasks, lambda i: strategy.train(stream[i]))


def bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    # not pretrained, a network this small learns nothing from the usual initial weights of 0.02
    start = {"initializer_range": 0.2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=42, max_position_embeddings=8, num_labels=4, **sizes, **start)
    return BertForSequenceClassification(config)


def _trained(model: Any, tasks: list[Any], protected: bool, rate: float, **options: Any) -> Scores:
    from transformers import Trainer, TrainingArguments, default_data_collator

    from ogd.integrations.transformers import OGDCallback
    from ogd.memory import GradientMemory

    callbacks = [OGDCallback(GradientMemory, per_task=STORED, every=1, **options)] if protected else []

    def learn(i: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            args = TrainingArguments(
                folder, num_train_epochs=EPOCHS, per_device_train_batch_size=20, learning_rate=rate, use_cpu=True,
                report_to="none", disable_tqdm=True, save_strategy="no", logging_strategy="no",
            )  # fmt: skip
            Trainer(model, args, train_dataset=tasks[i][0], callbacks=callbacks).train()

    return measured(model, tasks, learn, default_data_collator)


def trainer(seed: int, protected: bool) -> Scores:
    return _trained(bert(), words(seed), protected, 5e-4)


def lora(seed: int, protected: bool) -> Scores:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=8, target_modules=["query", "value", "dense"], modules_to_save=["classifier"])
    return _trained(get_peft_model(bert(), config), words(seed), protected, 2e-3)


def gpt(seed: int, protected: bool) -> Scores:
    from transformers import GPT2Config, GPT2LMHeadModel

    from ogd.integrations.transformers import next_tokens

    config = GPT2Config(vocab_size=40, n_positions=8, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    return _trained(GPT2LMHeadModel(config), text(seed), protected, 2e-3, outputs=next_tokens)


def accelerate(seed: int, protected: bool) -> Scores:
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader
    from transformers import default_data_collator

    import ogd

    accelerator, tasks = Accelerator(cpu=True), words(seed)
    model, optimizer = accelerator.prepare(made := bert(), torch.optim.AdamW(made.parameters(), lr=5e-4))
    memory = ogd.GradientMemory(model, per_task=STORED)
    if protected:
        memory.protect(optimizer.optimizer, every=1)

    def learn(i: int) -> None:
        loader = DataLoader(tasks[i][0], 20, shuffle=True, collate_fn=default_data_collator)
        for _ in range(EPOCHS):
            for batch in loader:
                optimizer.zero_grad()
                accelerator.backward(model(**batch).loss)
                optimizer.step()
        memory.remember(loader)

    return measured(model, tasks, learn, default_data_collator)


def show() -> None:
    """Print the record as Markdown."""
    record = json_files.load(RECORD)
    heads = ["framework", "version", "lines", "saved", "task 1 learned", "then plain", "then protected", "difference"]
    print(f"| {' | '.join([*heads, 'task 2: plain, protected'])} |")
    print("| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for name, (title, _, data, lines, saved) in ROWS.items():
        found = record["frameworks"][name]
        digits, scale, unit = (2, 1, " nats") if data == "text" else (1, 100, " %")

        def cell(values: Iterable[float], sign: str = "", scale: int = scale, digits: int = digits) -> str:
            values = [scale * value for value in values]
            return f"{statistics.mean(values):{sign}.{digits}f} ± {statistics.stdev(values):.{digits}f}"

        plain, guarded = (list(zip(*found[way], strict=True)) for way in ("plain", "protected"))
        differences = [b - a for a, b in zip(plain[1], guarded[1], strict=True)]
        difference = f"**{cell(differences, '+')}**" if clear(differences) else cell(differences, "+")
        cells = [
            cell(plain[0]) + unit,
            cell(plain[1]),
            cell(guarded[1]),
            difference,
            f"{cell(plain[2])}, {cell(guarded[2])}",
        ]
        print(f"| {title} | {found['version']} | {lines} | {saved} | {' | '.join(cells)} |")


def clear(differences: list[float]) -> bool:
    """Whether the 95 % interval of the mean of three values, by Student's t, leaves 0 out."""
    return abs(statistics.mean(differences)) > STUDENT * statistics.stdev(differences) / len(differences) ** 0.5


def main(names: list[str]) -> None:
    import torch

    from ogd.files import write_text
    from ogd.lab.records.record import environment

    sys.path.insert(0, str(ROOT / "tests"))
    import torchvision_operators  # noqa: F401

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    record = {"schema": 1, "seeds": SEEDS, "stored": STORED, "examples": EXAMPLES, "frameworks": {}}
    for name in names:
        found: dict[str, Any] = {"version": importlib.metadata.version(ROWS[name][1]), "plain": [], "protected": []}
        for seed in SEEDS:
            for way in ("plain", "protected"):
                torch.manual_seed(seed)
                with contextlib.redirect_stdout(io.StringIO()):
                    found[way].append(globals()[name](seed, way == "protected"))
                print(name, seed, way, found[way][-1], file=sys.stderr)
        if RECORD.exists():
            record["frameworks"] = json_files.load(RECORD)["frameworks"]
        record["frameworks"][name] = found
        write_text(RECORD, json.dumps({**record, "environment": environment()}, indent=1) + "\n")
    show()


if __name__ == "__main__":
    show() if sys.argv[1:] == ["--show"] else main(sys.argv[1:] or list(ROWS))
