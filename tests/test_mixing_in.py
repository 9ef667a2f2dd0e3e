"""TPAUCModule in front of somebody's LightningModule: what is theirs stays theirs."""

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch import nn

from lightning_tpauc import StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.errors import ArgumentError, UnsupportedError
from tests.fixed import DIM, NUM_POS, loader, make_batches, make_trainer


class Theirs(LightningModule):
    """A backbone and a head, hooks of its own, and an optimizer."""

    def __init__(self, features: int = 1):
        super().__init__()
        self.backbone = nn.Linear(DIM, features)
        self.head = nn.Linear(features, 1)
        self.called: list[object] = []

    def forward(self, inputs):
        return self.head(self.backbone(inputs))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def configure_callbacks(self):
        return [TheirCallback(), StageCallback(max_negatives=7)]

    def on_fit_start(self):
        self.called.append("on_fit_start")

    def on_before_optimizer_step(self, optimizer):
        self.called.append("on_before_optimizer_step")

    def on_save_checkpoint(self, checkpoint):
        checkpoint["theirs"] = 5

    def on_load_checkpoint(self, checkpoint):
        self.called.append(checkpoint["theirs"])


class TheirCallback(Callback):
    pass


class Ours(TPAUCModule, Theirs):
    pass


def algorithm(**kwargs):
    return STACO(dual_init="zeros", stage_restart="ones", **kwargs)


@pytest.mark.parametrize("features", [1, 3])
def test_their_forward_scores_though_they_call_a_part_of_it_backbone(features):
    module = Ours(features=features, algorithm=algorithm())
    inputs = torch.randn(5, DIM, generator=torch.Generator().manual_seed(0))
    assert torch.equal(module(inputs), Theirs.forward(module, inputs))
    assert module.raw_scores(inputs).shape == (5,)


def test_their_hooks_run_beside_ours(tmp_path):
    batches, _ = make_batches(3)
    module = Ours(algorithm=algorithm(), num_positives=NUM_POS)
    trainer = make_trainer()
    trainer.fit(module, loader(batches))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    assert module.called == ["on_fit_start", *["on_before_optimizer_step"] * 3]
    assert any(isinstance(callback, TheirCallback) for callback in trainer.callbacks)
    assert [c.max_negatives for c in trainer.callbacks if isinstance(c, StageCallback)] == [7]
    assert module.iterates.count == 3
    again = Ours.load_from_checkpoint(tmp_path / "a.ckpt", algorithm=algorithm())
    assert again.called == [5]


@pytest.mark.parametrize("name", ["memory", "previous", "algorithm", "lr_scheduler_interval", "base_lr", "in_step"])
def test_an_attribute_that_both_need_is_refused(name):
    class Named(Theirs):
        def __init__(self):
            super().__init__()
            setattr(self, name, nn.Linear(1, 1))

    class Both(TPAUCModule, Named):
        pass

    with pytest.raises(ArgumentError, match=f"Both mixes TPAUCModule into a class that has `{name}` already"):
        Both(algorithm=algorithm())


def test_their_callbacks_are_looked_at_as_well():
    class Averaged(Theirs):
        def configure_callbacks(self):
            return StochasticWeightAveraging(swa_lrs=0.1)

    class Both(TPAUCModule, Averaged):
        pass

    module = Both(algorithm=algorithm(), num_positives=NUM_POS)
    with pytest.raises(UnsupportedError, match="StochasticWeightAveraging does not work with manual optimization"):
        make_trainer().fit(module, loader(make_batches(1)[0]))


def test_a_backbone_beside_theirs_is_refused():
    with pytest.raises(ArgumentError, match="a class that has `backbone` already"):
        Ours(algorithm=algorithm(), backbone=nn.Linear(DIM, 1))


def test_a_schedule_for_their_optimizer_is_refused():
    def decay(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1)

    module = Ours(algorithm=algorithm(), num_positives=NUM_POS, lr_scheduler=decay)
    with pytest.raises(ArgumentError, match="`lr_scheduler` needs `optimizer`: without it the optimizer, and its"):
        make_trainer().fit(module, loader(make_batches(1)[0]))


@pytest.mark.parametrize("theirs", [False, True], ids=["a factory", "mixed in"])
def test_a_cycle_never_raises_the_dual_step_sizes(theirs):
    def cycle(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=9)

    class WithCycle(Theirs):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.01)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": cycle(optimizer), "interval": "step"}}

    class Mixed(TPAUCModule, WithCycle):
        pass

    scales = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            scales.append(pl_module.algorithm.step_scale)

    if theirs:
        module = Mixed(algorithm=algorithm(), num_positives=NUM_POS)
    else:
        module = TPAUCModule(
            nn.Linear(DIM, 1),
            algorithm(),
            lambda p: torch.optim.SGD(p, lr=0.01),
            cycle,
            lr_scheduler_interval="step",
            num_positives=NUM_POS,
        )
    make_trainer(callbacks=[Watch()]).fit(module, loader(make_batches(8)[0]))
    assert len(scales) == 8
    assert 0.9 < max(scales) <= 1.0 + 1e-12
    assert min(scales) < 0.1
