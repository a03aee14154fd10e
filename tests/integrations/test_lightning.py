"""Lightning's own Trainer, with the callback: as by hand, and the same after a checkpoint."""

import pytest
import torch
from drift import forbidden, weights
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import ogd

lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed: pip install 'ogd[lightning]'")
from ogd.integrations.lightning import OGD  # noqa: E402

QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Net(lightning.LightningModule):
    def __init__(self, optimizers=1):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        self.optimizers_wanted = optimizers
        self.automatic_optimization = optimizers == 1

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        if not self.automatic_optimization:
            self.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
        return loss

    def validation_step(self, batch):
        pass

    def configure_optimizers(self):
        parts = [self.net] if self.optimizers_wanted == 1 else [self.net[0], self.net[2]]
        return [torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.5) for part in parts]


def task(seed, n=24):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=generator)
    return DataLoader(TensorDataset(x, (x @ torch.randn(6, 3, generator=generator)).argmax(1)), batch_size=8)


A, B = task(1), task(2)


def fit(model, callback, data, *, epochs=4, checkpoint=None, **options):
    options = {"enable_checkpointing": False, **QUIET, **options}
    trainer = lightning.Trainer(max_epochs=epochs, callbacks=[callback] if callback else [], **options)
    trainer.fit(model, data, ckpt_path=checkpoint)
    return trainer


def by_hand(model, data, memory, every=1, epochs=4, **way):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    with memory.protect(optimizer, every, **way):
        for _ in range(epochs):
            for x, y in data:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
    memory.remember(data)


@pytest.mark.parametrize("every", [1, 5])
def test_as_by_hand(every):
    model, callback = Net(), OGD(ogd.GradientMemory, per_task=None, every=every)
    fit(model, callback, A)
    fit(model, callback, B)
    mine = Net()
    memory = ogd.GradientMemory(mine, per_task=None)
    by_hand(mine, A, memory, every)
    by_hand(mine, B, memory, every)
    assert callback.memory.task_sizes == memory.task_sizes == (24, 24)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p, mine.get_parameter(name))


def test_rehearsal_as_by_hand():
    torch.manual_seed(0)
    model, callback = Net(), OGD(per_task=8, every=2, batch_size=4, alpha=0.3)
    mine = Net()
    memory = ogd.ExampleMemory(mine, per_task=8)
    for data in (A, B):
        fit(model, callback, data)
        by_hand(mine, data, memory, 2, batch_size=4, alpha=0.3)
    assert callback.memory.task_sizes == (8, 8)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p, mine.get_parameter(name))


@pytest.mark.parametrize("optimizers", [1, 2])
def test_moves_only_where_the_first_task_stays(optimizers):
    model, callback = Net(optimizers), OGD(ogd.GradientMemory, per_task=8)
    fit(model, callback, A)
    state, before = callback.memory.state_dict(), weights(model)
    fit(model, callback, B)
    assert forbidden(state, model, before) < 1e-5
    before = weights(model)
    fit(model, None, A)
    assert forbidden(state, model, before) > 0.1


def test_a_checkpoint_inside_a_task_goes_on_as_without_a_break(tmp_path):
    model, callback = Net(), OGD(ogd.GradientMemory, per_task=8, every=7)
    fit(model, callback, A)
    keep = lightning.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=6, save_top_k=-1)
    trainer = lightning.Trainer(max_epochs=4, callbacks=[callback, keep], **QUIET)
    state, before = callback.memory.state_dict(), weights(model)
    trainer.fit(model, B)
    again, resumed = Net(), OGD(ogd.GradientMemory, per_task=8, every=7)
    fit(again, resumed, B, checkpoint=tmp_path / "epoch=1-step=6.ckpt")
    saved = torch.load(tmp_path / "epoch=1-step=6.ckpt", weights_only=True)  # nothing but plain values and tensors
    middle = Net()
    middle.load_state_dict(saved["state_dict"])
    assert forbidden(state, middle, before) < 1e-5
    assert resumed.memory.task_sizes == callback.memory.task_sizes == (8, 8)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p, again.get_parameter(name))


def test_the_next_task_in_another_process(tmp_path):
    model, callback = Net(), OGD(ogd.GradientMemory, per_task=8)
    fit(model, callback, A).save_checkpoint(tmp_path / "a.ckpt")
    other = Net.load_from_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    taken = OGD.from_checkpoint(tmp_path / "a.ckpt", per_task=8)
    fit(model, callback, B)
    fit(other, taken, B)
    assert taken.memory.task_sizes == (8, 8)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p, other.get_parameter(name))


def test_resumed_from_its_own_end_a_task_is_remembered_once(tmp_path):
    keep = lightning.callbacks.ModelCheckpoint(tmp_path, filename="last")
    trainer = lightning.Trainer(max_epochs=2, callbacks=[OGD(ogd.GradientMemory, per_task=8), keep], **QUIET)
    trainer.fit(Net(), A)
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    for name in ("last", "after"):  # saved before it was remembered, and afterwards
        callback = OGD(ogd.GradientMemory, per_task=8)
        fit(Net(), callback, A, epochs=2, checkpoint=tmp_path / f"{name}.ckpt")
        assert callback.memory.task_sizes == (8,), name


def test_an_interrupted_fit_remembers_nothing_and_frees_the_optimizer():
    class Fails(Net):
        def on_train_epoch_end(self):
            raise RuntimeError("power cut")

    callback = OGD(ogd.GradientMemory, per_task=8)
    with pytest.raises(RuntimeError, match="power cut"):
        fit(Fails(), callback, A)
    assert callback.memory.task_sizes == ()
    assert not callback.guard._protections


def test_what_is_pending_is_projected_before_a_validation():
    seen = []

    class Looks(Net):
        def on_validation_epoch_start(self):
            seen.append(weights(self))

    model, callback = Looks(), OGD(ogd.GradientMemory, per_task=8, every=50)
    fit(model, callback, A)
    state, before = callback.memory.state_dict(), weights(model)
    trainer = lightning.Trainer(
        max_epochs=1, callbacks=[callback], enable_checkpointing=False, num_sanity_val_steps=0, **QUIET
    )
    trainer.fit(model, B, B)
    model.load_state_dict(seen[-1])
    assert forbidden(state, model, before) < 1e-5


def test_a_memory_of_your_own_of_a_part_of_the_module():
    model = Net()
    callback = OGD(ogd.GradientMemory(model.net, per_task=4), remember=False)
    fit(model, callback, A)
    assert callback.memory.task_sizes == ()
    callback.memory.remember(A)
    state, before = callback.memory.state_dict(), weights(model.net)
    fit(model, callback, B)
    assert forbidden(state, model.net, before) < 1e-5


def test_errors(tmp_path):
    callback = OGD(ogd.GradientMemory, per_task=4)
    fit(Net(), callback, A, epochs=1)
    with pytest.raises(ValueError, match="memory belongs to another Net, not to the Net in training"):
        fit(Net(), callback, A, epochs=1)
    with pytest.raises(TypeError, match="per_task: a given memory has its own options"):
        OGD(callback.memory, per_task=3)
    with pytest.raises(TypeError, match=r"memory must be an ExampleMemory .*, not a Net"):
        OGD(Net())
    fit(Net(), None, A, epochs=1).save_checkpoint(tmp_path / "none.ckpt")
    with pytest.raises(ValueError, match=r"none.ckpt: holds no memory"):
        OGD.from_checkpoint(tmp_path / "none.ckpt")
