"""Hugging Face's own Trainer, Accelerate and peft: the first task stays, and checkpoints bring the memory back."""

import shutil

import pytest
import torch
from drift import forbidden, weights
from safetensors.torch import load_file

import ogd

HF = "is not installed: pip install 'ogd[hf]'"
transformers = pytest.importorskip("transformers", reason=f"transformers {HF}")
accelerate = pytest.importorskip("accelerate", reason=f"accelerate {HF}")
peft = pytest.importorskip("peft", reason=f"peft {HF}")
from small_bert import STEPS, A, B, bert, task, train  # noqa: E402

from ogd.integrations.transformers import OGDCallback, next_tokens  # noqa: E402


def lora():
    config = peft.LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier"], lora_dropout=0)
    return peft.get_peft_model(bert(), config)


def gpt():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=30, n_embd=16, n_layer=1, n_head=2, n_positions=8, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    return transformers.GPT2LMHeadModel(config)


def text(seed):
    return [{"input_ids": example["input_ids"], "labels": example["input_ids"]} for example in task(seed)]


@pytest.mark.parametrize(
    ("make", "tasks", "options"),
    [(bert, (A, B), {}), (lora, (A, B), {}), (gpt, (text(1), text(2)), {"outputs": next_tokens})],
    ids=["bert", "bert with LoRA", "gpt2"],
)
def test_moves_only_where_the_first_task_stays(tmp_path, make, tasks, options):
    model, callback = make(), OGDCallback(ogd.GradientMemory, per_task=8, **options)
    train(model, callback, tasks[0], tmp_path)
    state, before = callback.memory.state_dict(), weights(model)
    assert all(("lora" in name or "classifier" in name) for name in dict(state["shapes"])) == (make is lora)
    train(model, callback, tasks[1], tmp_path)
    assert callback.memory.task_sizes == (8, 8)
    assert forbidden(state, model, before) < 1e-4
    before = weights(model)
    train(model, None, tasks[1], tmp_path)
    assert forbidden(state, model, before) > 0.05


@pytest.mark.parametrize("make", [bert, lora])
def test_a_checkpoint_inside_a_task_goes_on_as_without_a_break(tmp_path, make):
    model, callback = make(), OGDCallback(ogd.GradientMemory, per_task=8, every=5)
    train(model, callback, A, tmp_path / "a", save_strategy="steps", save_steps=STEPS)
    state, before = callback.memory.state_dict(), weights(model)
    train(model, callback, B, tmp_path / "b", save_strategy="steps", save_steps=4)
    for resumed, folder in [
        (OGDCallback(ogd.GradientMemory, per_task=8, every=5), tmp_path / "b"),
        (OGDCallback(ogd.GradientMemory, per_task=8, every=5), tmp_path / "c"),
    ]:
        checkpoint = folder / "checkpoint-8"
        if folder.name == "c":
            shutil.copytree(tmp_path / "b" / "checkpoint-8", tmp_path / "moved")
            checkpoint = tmp_path / "moved"
            resumed.restore(checkpoint)
        again = make()
        train(again, resumed, B, folder, resume=str(checkpoint), save_strategy="steps", save_steps=4)
        assert resumed.memory.task_sizes == (8, 8)
        for name, p in model.named_parameters():
            torch.testing.assert_close(p, again.get_parameter(name))
    if make is bert:
        middle = bert()
        middle.load_state_dict(load_file(tmp_path / "b" / "checkpoint-8" / "model.safetensors"))
        assert forbidden(state, middle, before) < 1e-4


def test_the_next_task_in_another_process(tmp_path):
    model, callback = bert(), OGDCallback(ogd.GradientMemory, per_task=8)
    train(model, callback, A, tmp_path / "a", save_strategy="steps", save_steps=STEPS).save_model(tmp_path / "a")
    other = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "a")
    taken = OGDCallback.load(tmp_path / "a", other)
    assert taken.memory.task_sizes == (8,)
    train(model, callback, B, tmp_path / "b")
    train(other, taken, B, tmp_path / "b")
    for name, p in model.named_parameters():
        torch.testing.assert_close(p, other.get_parameter(name))


def test_of_an_endless_stream_what_was_trained_on_is_remembered(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from (example for _ in range(100) for example in A)

    for kind, options in ((ogd.ExampleMemory, {}), (ogd.GradientMemory, {}), (ogd.ExampleMemory, {"loss": loss_of})):
        model, callback = bert(), OGDCallback(kind, per_task=None, **options)
        train(model, callback, Stream(), tmp_path, max_steps=3, gradient_accumulation_steps=2)
        assert callback.memory.task_sizes == (3 * 2 * 4,)


def loss_of(model, batch):
    return model(**batch).loss


def test_a_checkpoint_without_a_memory_is_told_of(tmp_path):
    train(bert(), None, A, tmp_path, save_strategy="steps", save_steps=4)
    with pytest.raises(
        FileNotFoundError, match=r"resumes from step 4, but there is no memory .*callback.restore\(folder"
    ):
        train(bert(), OGDCallback(ogd.GradientMemory), A, tmp_path, resume=str(tmp_path / "checkpoint-4"))


def test_accelerate_saves_and_restores_a_memory(tmp_path):
    def prepared():
        accelerator = accelerate.Accelerator(cpu=True)
        model = bert()
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
        memory = ogd.GradientMemory(model, per_task=8)
        accelerator.register_for_checkpointing(memory)
        memory.protect(optimizer.optimizer, every=1)
        return accelerator, model, optimizer, memory

    def steps(accelerator, model, optimizer, data):
        loader = torch.utils.data.DataLoader(data, 4)
        for batch in loader:
            optimizer.zero_grad()
            accelerator.backward(model(**batch).loss)
            optimizer.step()
        return loader

    accelerator, model, optimizer, memory = prepared()
    loader = steps(accelerator, model, optimizer, A)
    memory.remember(loader)
    accelerator.save_state(str(tmp_path), safe_serialization=True)
    state, before = memory.state_dict(), weights(model)
    steps(accelerator, model, optimizer, B)
    assert forbidden(state, model, before) < 1e-4
    accelerator, again, optimizer, memory = prepared()
    accelerator.load_state(str(tmp_path))
    assert memory.task_sizes == (8,)
    steps(accelerator, again, optimizer, B)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p, again.get_parameter(name))
