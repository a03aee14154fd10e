"""A BERT of one layer, two tasks of words, and Trainer."""

import torch
import transformers

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
STEPS = 12


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=30, hidden_dropout_prob=0, attention_probs_dropout_prob=0, **SIZES)
    return transformers.BertForSequenceClassification(config)


def task(seed, n=24):
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(30, (n, 6), generator=generator)
    labels = (words.float() @ torch.randn(6, generator=generator) > 0).long()
    return [
        {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": y} for x, y in zip(words, labels, strict=True)
    ]


A, B = task(1), task(2)


def train(model, callback, data, folder, *, resume=None, **options):
    options = {"save_strategy": "no", "max_steps": STEPS, "learning_rate": 1e-3, **options}
    args = transformers.TrainingArguments(
        str(folder), use_cpu=True, report_to="none", disable_tqdm=True, per_device_train_batch_size=4, **options
    )
    trainer = transformers.Trainer(model, args, train_dataset=data, callbacks=[callback] if callback else None)
    trainer.train(resume_from_checkpoint=resume)
    return trainer
