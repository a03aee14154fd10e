"""What Trainer forgets is in its own logs: the loss on sets of the past, and its rise since training began."""

import pytest
import torch

import ogd

HF = "is not installed: pip install 'ogd[hf]'"
transformers = pytest.importorskip("transformers", reason=f"transformers {HF}")
peft = pytest.importorskip("peft", reason=f"peft {HF}")
from small_bert import STEPS, A, B, bert, task  # noqa: E402

from ogd.integrations.transformers import OGDCallback  # noqa: E402

OLD, NEW = task(1, 40)[24:], task(2, 40)[24:]  # held out
EVERY = {"eval_strategy": "steps", "eval_steps": 4}


class Logs(transformers.TrainerCallback):
    """A reporter, as TensorBoard's is: it sees what Trainer logs, and nothing else."""

    def __init__(self):
        self.seen = []

    def on_log(self, args, state, control, logs=None, **_):
        self.seen.append((state.global_step, dict(logs)))


def made(model, folder, callbacks, *, new=NEW, **options):
    options = {"save_strategy": "no", "max_steps": STEPS, "learning_rate": 1e-2, **options}
    args = transformers.TrainingArguments(
        str(folder), use_cpu=True, report_to="none", disable_tqdm=True, per_device_train_batch_size=4, **options
    )
    return transformers.Trainer(model, args, train_dataset=B, eval_dataset=new, callbacks=callbacks)


def learned(make=bert):
    """A model that has learned A."""
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        model(**torch.utils.data.default_collate(A)).loss.backward()
        optimizer.step()
    return model


def loss_of(model, data):
    model.eval()
    with torch.no_grad():
        return float(model(**torch.utils.data.default_collate(data)).loss)


def entries(trainer, key):
    return [(entry["step"], entry[key]) for entry in trainer.state.log_history if key in entry]


def lora():
    model = learned()
    return peft.get_peft_model(
        model, peft.LoraConfig(r=4, target_modules=["query", "value"], modules_to_save=["classifier"])
    )


@pytest.mark.parametrize("make", [learned, lora])
@pytest.mark.parametrize("kind", [ogd.ExampleMemory, ogd.GradientMemory])
def test_loss_and_forgetting_are_logged_at_every_evaluation(kind, make, tmp_path):
    model, logs, callback = make(), Logs(), OGDCallback(kind, per_task=8)
    before = loss_of(model, OLD)
    trainer = made(model, tmp_path, [logs, callback], **EVERY)
    callback.watch(trainer, {"old": OLD})
    trainer.train()
    losses, rises = entries(trainer, "eval_old_loss"), entries(trainer, "eval_old_forgetting")
    assert [step for step, _ in losses] == [step for step, _ in rises] == [0, 4, 8, STEPS]
    assert losses[0][1] == pytest.approx(before, rel=1e-5)
    assert losses[-1][1] == pytest.approx(loss_of(model, OLD), rel=1e-5)
    assert [rise for _, rise in rises] == pytest.approx([loss - losses[0][1] for _, loss in losses])
    assert abs(rises[-1][1]) > 0.1
    seen = [(step, entry["eval_old_forgetting"]) for step, entry in logs.seen if "eval_old_forgetting" in entry]
    assert seen == rises
    assert len(entries(trainer, "eval_loss")) == 3


def test_without_evaluations_the_beginning_and_the_end_are_logged(tmp_path):
    callback = OGDCallback(per_task=8)
    trainer = made(learned(), tmp_path, [callback])
    callback.watch(trainer, {"old": OLD, "older": A})
    trainer.train()
    for name in ("old", "older"):
        assert [step for step, _ in entries(trainer, f"eval_{name}_forgetting")] == [0, STEPS]


def test_watching_changes_nothing_in_training(tmp_path):
    found = []
    for watched in (False, True):
        model, callback = learned(), OGDCallback(ogd.GradientMemory, per_task=8, every=5, remember=False)
        trainer = made(model, tmp_path, [callback], **EVERY)
        if watched:
            callback.watch(trainer, {"old": torch.utils.data.Subset(OLD, range(10))})
        trainer.train()
        found.append(model.state_dict())
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def test_several_evaluation_sets_are_one_evaluation(tmp_path):
    callback = OGDCallback(per_task=8)
    trainer = made(learned(), tmp_path, [callback], new={"a": NEW, "b": NEW[:4]}, **EVERY)
    callback.watch(trainer, {"old": OLD})
    trainer.train()
    assert [step for step, _ in entries(trainer, "eval_old_loss")] == [0, 4, 8, STEPS]
    assert len(entries(trainer, "eval_b_loss")) == 3


def test_a_resumed_training_counts_from_its_beginning(tmp_path):
    options = {**EVERY, "save_strategy": "steps", "save_steps": 4}
    forgetting = []
    for resume in (None, str(tmp_path / "checkpoint-8")):
        model, callback = learned(), OGDCallback(per_task=8)
        trainer = made(model, tmp_path, [callback], **options)
        callback.watch(trainer, {"old": OLD})
        trainer.train(resume_from_checkpoint=resume)
        forgetting.append(entries(trainer, "eval_old_forgetting"))
    assert [step for step, _ in forgetting[1]] == [0, 4, 8, STEPS]
    assert forgetting[0] == forgetting[1]


def test_the_best_model_may_be_the_one_that_forgot_least(tmp_path):
    callback = OGDCallback(per_task=8)
    best = {"metric_for_best_model": "eval_old_forgetting", "greater_is_better": False, "load_best_model_at_end": True}
    model = learned()
    trainer = made(model, tmp_path, [callback], **EVERY, save_strategy="steps", save_steps=4, **best)
    callback.watch(trainer, {"old": OLD})
    trainer.train()
    rises = dict(entries(trainer, "eval_old_forgetting"))
    least = min((4, 8, STEPS), key=lambda step: rises[step])
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{least}")


def test_only_its_own_trainer_is_watched_and_sets_have_names_and_labels(tmp_path):
    callback = OGDCallback(per_task=8)
    first, second = (made(learned(), tmp_path, [callback], **EVERY) for _ in range(2))
    callback.watch(first, {"old": OLD})
    second.model = first.model
    second.train()
    assert not entries(second, "eval_old_loss")
    with pytest.raises(TypeError, match=r'past must be a dictionary such as \{"first": dataset\}, not \['):
        callback.watch(first, [OLD])
    callback.watch(first, {"old": [{"input_ids": example["input_ids"]} for example in OLD]})
    with pytest.raises(ValueError, match="no loss on 'old': do its examples have labels"):
        first.train()
