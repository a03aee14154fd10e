"""Text with Hugging Face's Trainer and LoRA: the callback protects the adapters. Needs pip install 'ogd[hf]'.

    python examples/text_lora.py

A small BERT, not pretrained so that nothing is downloaded, tells which of four topics a sentence of made-up words is
about. Then the same words are grouped into other topics. The first word says which grouping is asked for. With a model
and a tokenizer of your own, only `sentences` and `network` change.
"""

import tempfile

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, default_data_collator

import ogd
from ogd.integrations.transformers import OGDCallback


def sentences(task, groups, n, generator):
    """Seven words, five of them of the topic that is the label, after a word that names the task."""
    labels = torch.randint(4, (n,), generator=generator)
    topics = torch.randint(4, (n, 7), generator=generator)
    topics[:, :5] = labels.unsqueeze(1)
    words = 2 + groups[topics, torch.randint(10, topics.shape, generator=generator)]
    words = torch.cat([torch.full((n, 1), task), words], 1)
    mask = torch.ones_like(words[0])
    return [{"input_ids": x, "attention_mask": mask, "labels": y} for x, y in zip(words, labels, strict=True)]


def network():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    start = {"initializer_range": 0.2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    bert = BertForSequenceClassification(BertConfig(vocab_size=42, num_labels=4, **sizes, **start))
    return get_peft_model(
        bert, LoraConfig(r=8, target_modules=["query", "value", "dense"], modules_to_save=["classifier"])
    )


def learned_in_turn(tasks, tests, epochs, protected):
    torch.manual_seed(0)
    model, callbacks = network(), [OGDCallback(ogd.GradientMemory, per_task=400)] if protected else []
    scores = []
    for task in tasks:
        with tempfile.TemporaryDirectory() as folder:
            args = TrainingArguments(
                folder, num_train_epochs=epochs, per_device_train_batch_size=20, learning_rate=2e-3, use_cpu=True,
                report_to="none", disable_tqdm=True, save_strategy="no", logging_strategy="no",
            )  # fmt: skip
            Trainer(model, args, train_dataset=task, callbacks=callbacks).train()
        scores.append(ogd.forgetting(model, tests))
    return scores[0], scores[-1]


def main(examples=1000, epochs=6):
    generator = torch.Generator().manual_seed(0)
    first = torch.randperm(40, generator=generator).view(4, 10)
    other = (torch.arange(4).unsqueeze(1) + torch.arange(10).div(2.5).long()) % 4
    groupings = [first, first[other, torch.arange(10)]]  # a new topic has two or three words of each old one
    tasks = [sentences(i, groups, examples, generator) for i, groups in enumerate(groupings)]
    held_out = [sentences(i, groups, 500, generator) for i, groups in enumerate(groupings)]
    loaders = [DataLoader(part, 250, collate_fn=default_data_collator) for part in held_out]
    tests = dict(zip(["first topics", "other topics"], loaders, strict=True))
    before, plain = learned_in_turn(tasks, tests, epochs, protected=False)
    _, protected = learned_in_turn(tasks, tests, epochs, protected=True)
    print("before: the first task is learned; after: both are, without protection; protected: both are, with it")
    print(ogd.compare(before, plain, protected=protected))


if __name__ == "__main__":
    main()
