"""The warm-up of the learning rate, how long it takes, and the optimizer of whoever chose none."""

import math

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import Timer
from torch.utils.data import IterableDataset

from lightning_tpauc import DampedAdam, PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO, CrossEntropy, FullBatch
from lightning_tpauc.errors import ArgumentError
from tests.helpers.problems import NUM_POS, LinearScore, loader, make_batches, make_trainer, paper_stages

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers.*", "ignore::lightning_tpauc.errors.TPAUCAdvice"
)


def sgd(lr, **kwargs):
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, **kwargs)


class Rates(Callback):
    """Learning rate and scale of the algorithm's step sizes of every step."""

    def __init__(self):
        self.rates, self.scales = [], []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.scales.append(pl_module.algorithm.step_scale)


def rates_of(optimizer=None, algorithm=None, num_batches=40, module=TPAUCModule, callbacks=(), trainer=None, **kwargs):
    seen = Rates()
    made = module(LinearScore(), algorithm or STACO(dual_init="zeros"), optimizer, num_positives=NUM_POS, **kwargs)
    run = make_trainer(callbacks=[seen, paper_stages(), *callbacks], **(trainer or {}))
    run.fit(made, loader(make_batches(num_batches)[0]))
    return seen


# ---------------------------------------------------------------- how long


@pytest.mark.parametrize(
    ("trainer", "steps"),
    [
        ({"max_epochs": 1}, 4),
        ({"max_epochs": 3}, 12),
        ({"max_epochs": -1, "max_steps": 60}, 6),
        ({"max_epochs": 2, "max_steps": 30}, 3),
        ({"max_epochs": 1, "limit_train_batches": 20}, 2),
        ({"max_epochs": -1, "max_steps": 300}, 54),
        ({"max_epochs": -1, "max_steps": 600}, 180),
        ({"max_epochs": 300, "limit_train_batches": 2}, 40),
    ],
)
def test_it_lasts_a_tenth_of_a_short_run_up_to_three_of_a_long_one_and_at_most_20_epochs(trainer, steps):
    seen = rates_of(sgd(1.0), trainer=trainer)
    expected = [min(1.0, k / steps) ** 2 for k in range(1, len(seen.rates) + 1)]
    assert seen.rates == expected


@pytest.mark.parametrize(("share", "steps"), [({}, 4), ({"warmup": 0.5}, 20)])
def test_other_methods_have_a_tenth_unless_told_otherwise(share, steps):
    seen = rates_of(sgd(1.0), CrossEntropy(), **share)
    assert seen.rates == [min(1.0, k / steps) ** 2 for k in range(1, 41)]


def test_a_stream_has_one_too():
    class Endless(IterableDataset):
        def __iter__(self):
            while True:
                yield from make_batches(10)[0]

    class Stop(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            trainer.should_stop = pl_module.training_state.batches_seen >= 120

    seen = Rates()
    module = TPAUCModule(LinearScore(), CrossEntropy(), sgd(1.0), num_positives=NUM_POS)
    trainer = make_trainer(callbacks=[seen, paper_stages(), Stop()], max_epochs=3)
    trainer.fit(module, torch.utils.data.DataLoader(Endless(), batch_size=None))
    assert seen.rates == [(k / 200) ** 2 for k in range(1, 121)]


def test_it_follows_the_clock_where_that_ends_the_run_earlier(monkeypatch):
    timer, taken = Timer(duration={"seconds": 40}), []
    monkeypatch.setattr(timer, "on_before_optimizer_step", lambda *_: taken.append(1))
    monkeypatch.setattr(timer, "time_elapsed", lambda *_: float(len(taken)))  # a second a step
    seen = rates_of(sgd(1.0), warmup=0.5, callbacks=[timer], trainer={"max_epochs": 500})
    assert seen.rates == pytest.approx([max((k + 1) / 800, min(1.0, k / 20)) ** 2 for k in range(40)])


# ---------------------------------------------------------------- where there is none, and what it scales


def test_the_algorithms_step_sizes_follow_the_rate():
    """While it grows, and where somebody lowers it later on."""

    class Lower(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if batch_idx == 20:
                trainer.optimizers[0].param_groups[0]["lr"] = 0.25

    seen = rates_of(sgd(1.0), callbacks=[Lower()])
    assert seen.rates == [0.0625, 0.25, 0.5625, *[1.0] * 17, *[0.25] * 20]
    assert seen.scales == seen.rates


@pytest.mark.parametrize("warmup", [0, 0.0])
def test_none_by_one_word(warmup):
    assert rates_of(sgd(1.0), warmup=warmup).rates == [1.0] * 40


def test_a_schedule_of_ones_own_has_no_other():
    seen = rates_of(
        sgd(1.0), lr_scheduler=lambda opt: torch.optim.lr_scheduler.MultiStepLR(opt, [30]), lr_scheduler_interval="step"
    )
    assert seen.rates == [*[1.0] * 30, *[0.1] * 10]


def test_a_step_on_all_data_needs_none():
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = Rates()
    data = PosNegDataModule((x, (torch.arange(40) % 4 == 0).long()))
    make_trainer(callbacks=[seen], max_epochs=20).fit(TPAUCModule(LinearScore(), FullBatch(), sgd(0.5)), data)
    assert seen.rates == [0.5] * 20


@pytest.mark.parametrize("warmup", [-0.1, 1.5, math.nan, "a"])
def test_a_share_that_is_none_is_refused(warmup):
    with pytest.raises(ArgumentError, match="`warmup`"):
        TPAUCModule(LinearScore(), warmup=warmup)


def test_a_second_training_warms_up_again():
    module = TPAUCModule(LinearScore(), CrossEntropy(), sgd(1.0), num_positives=NUM_POS)
    for _ in range(2):
        seen = Rates()
        make_trainer(callbacks=[seen]).fit(module, loader(make_batches(40)[0]))
        assert seen.rates[:5] == [0.0625, 0.25, 0.5625, 1.0, 1.0]


# ---------------------------------------------------------------- the optimizer of whoever chose none


def test_the_default_trains_as_damped_adam_does():
    def weights(optimizer):
        module = TPAUCModule(LinearScore(), CrossEntropy(), optimizer, num_positives=NUM_POS)
        make_trainer().fit(module, loader(make_batches(20)[0]))
        return module.backbone.weight

    assert torch.equal(weights(None), weights(lambda p: DampedAdam(p, lr=0.01)))
    assert not torch.equal(weights(None), weights(sgd(3e-3)))
