"""When the average is in the model and when the last iterate, whoever looks and whatever fails."""

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_tpauc import StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO, CrossEntropy
from tests.helpers.problems import NUM_POS, LinearScore, eval_loader, loader, make_batches, make_trainer
from tests.helpers.tolerances import assert_close
from tests.reference.averages import polynomial_mean

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*`val_dataloader`.*")

STEPS = 4


def algorithm():
    return STACO(0.6, 0.3, alpha=0.7, beta=0.2, dual_init="zeros", stage_restart="ones")


def make_module(method=algorithm):
    return TPAUCModule(LinearScore(), method(), lambda p: torch.optim.SGD(p, lr=0.05), num_positives=NUM_POS)


def fit(module, *callbacks, **kwargs):
    batches, _ = make_batches(STEPS)
    trainer = make_trainer(callbacks=list(callbacks), **{"num_sanity_val_steps": 0, "max_epochs": 2, **kwargs})
    trainer.fit(module, loader(batches), eval_loader())
    return trainer


class Watch(Callback):
    """The weights after every step, at every hook of validation, and where training goes on."""

    def __init__(self):
        self.after, self.before, self.at_end, self.at_epoch_end = [], [], [], []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.before.append(weight(pl_module))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.after.append(weight(pl_module))

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.at_end.append(weight(pl_module))

    def on_train_epoch_end(self, trainer, pl_module):
        self.at_epoch_end.append(weight(pl_module))


def weight(module):
    return module.backbone.weight.detach().clone()


@pytest.mark.parametrize(("every", "method"), [(2, algorithm), (STEPS, algorithm), (2, CrossEntropy)])
def test_all_callbacks_find_the_average_until_validation_ends(every, method):
    first, last = Watch(), Watch()
    fit(make_module(method), first, StageCallback(), last, val_check_interval=every)
    steps = range(every, 2 * STEPS + 1, every)
    for watch in (first, last):
        assert len(watch.at_end) == len(steps)
        for step, at_end in zip(steps, watch.at_end, strict=True):
            assert_close(at_end, polynomial_mean(watch.after[:step]))
        assert all(torch.equal(a, b) for a, b in zip(watch.after, watch.before[1:], strict=False))
        assert torch.equal(watch.at_epoch_end[0], watch.after[STEPS - 1])


def test_the_checkpoint_of_a_validation_is_what_it_was(tmp_path):
    watch = Watch()
    saver = ModelCheckpoint(tmp_path, monitor="val/tpauc", mode="max", save_top_k=-1, filename="{step}")
    fit(make_module(), StageCallback(), watch, saver, enable_checkpointing=True)
    for epoch, at_end in enumerate(watch.at_end, 1):
        checkpoint = torch.load(tmp_path / f"step={epoch * STEPS}.ckpt", weights_only=True)
        assert torch.equal(checkpoint["state_dict"]["backbone.weight"], at_end)
        assert torch.equal(checkpoint["lightning_tpauc"]["iterate"][0], watch.after[epoch * STEPS - 1])


# ---------------------------------------------------------------- failures


class Fail(Callback):
    def on_validation_epoch_end(self, trainer, pl_module):
        if not trainer.sanity_checking and trainer.state.fn == "fit":
            msg = "validation fails"
            raise RuntimeError(msg)


def test_a_validation_that_fails_leaves_the_last_iterate():
    watch, stages = Watch(), StageCallback()
    module = make_module()
    with pytest.raises(RuntimeError, match="validation fails"):
        fit(module, watch, stages, Fail())
    assert torch.equal(weight(module), watch.after[-1])
    make_trainer(callbacks=[stages]).validate(module, eval_loader(), verbose=False)
    assert torch.equal(weight(module), watch.after[-1])
