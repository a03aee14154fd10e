"""A language model that has learned English is fine-tuned with LoRA on Python code, and keeps its English.

    python examples/language_model.py  # needs: pip install 'ogd[hf]'

A small Llama that reads bytes learns Python's manual, which stands in for a pretrained model. Then Hugging Face's
Trainer fine-tunes LoRA adapters (peft) on Python's own source code. Before that, an `ogd.ExampleMemory` keeps 200
pieces of English with the model's outputs. It prints a table: the model's loss per byte on both kinds of text (lower is
better) before fine-tuning, and after it without protection and with it. With a model of your own only `pretrained`
and `pieces` change.
"""

import copy
import inspect
import tempfile
from pydoc_data import topics

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import default_collate
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import ogd
from ogd.integrations.transformers import OGDCallback

LENGTH = 64  # bytes per piece of text


def pieces(text):
    """Cut a text into pieces, in random order; a byte is a token."""
    data = torch.tensor(list(text.encode()))
    data = data[: len(data) // LENGTH * LENGTH].view(-1, LENGTH)
    data = data[torch.randperm(len(data), generator=torch.Generator().manual_seed(0))]
    return [{"input_ids": x, "labels": x} for x in data]


def train(model, texts, lr, callbacks=()):
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, num_train_epochs=1, per_device_train_batch_size=16, learning_rate=lr, use_cpu=True,
            report_to="none", disable_tqdm=True, save_strategy="no", logging_strategy="no",
        )  # fmt: skip
        Trainer(model, args, train_dataset=texts, callbacks=list(callbacks)).train()


def pretrained(texts):
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=LENGTH, **sizes))
    train(model, texts, lr=2e-3)
    return model


def fine_tuned(model, texts, english, protected):
    torch.manual_seed(0)
    model = get_peft_model(copy.deepcopy(model), LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))
    callbacks = []
    if protected:
        memory = ogd.ExampleMemory(model)
        memory.remember(english)
        callbacks = [OGDCallback(memory, remember=False)]
    train(model, texts, lr=2e-3, callbacks=callbacks)
    return model


def main(examples=4800):
    english, code = pieces("".join(topics.topics.values())), pieces(inspect.getsource(inspect))
    tests = {"English": default_collate(english[-200:]), "code": default_collate(code[-200:])}
    model = pretrained(english[:examples])
    before = ogd.forgetting(model, tests, measure="loss")
    plain, protected = [
        ogd.forgetting(fine_tuned(model, code[:-200][:examples], english[:examples], protected), tests, measure="loss")
        for protected in (False, True)
    ]
    print(ogd.compare(before, plain, protected=protected))


if __name__ == "__main__":
    main()
