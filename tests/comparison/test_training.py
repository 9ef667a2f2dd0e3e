"""How long methods train, and which learning rate is chosen."""

import math

import pytest
import torch
from lightning.pytorch import Callback

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO, CrossEntropy, FullBatch
from lightning_tpauc.comparison import Comparison
from lightning_tpauc.comparison.comparing import best_factor
from lightning_tpauc.comparison.results import Outcome
from lightning_tpauc.comparison.training import Setup, chosen_methods, examples_per_step, length_of
from lightning_tpauc.errors import ArgumentError
from tests.helpers.problems import bare_trainer


def problem(**options):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(90) % 6 == 0
    x = torch.randn(90, 3, generator=generator) + y[:, None]
    return PosNegDataModule((x, y), val_fraction=0.2, **options)


class Counts(Callback):
    """Steps, examples and validations of a real training."""

    def __init__(self):
        self.steps = self.examples = self.validations = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.steps += 1
        self.examples += batch.num_pos + batch.num_neg + batch.num_dual_neg

    def on_validation_end(self, trainer, pl_module):
        self.validations += not trainer.sanity_checking


def counted(datamodule, algorithm, **trainer):
    counts = Counts()
    module = TPAUCModule(torch.nn.Linear(3, 1), algorithm)
    bare_trainer(callbacks=[counts], **trainer).fit(module, datamodule)
    return counts


@pytest.mark.parametrize(
    "trainer",
    [
        {"max_epochs": 3},
        {"max_steps": 7, "max_epochs": -1},
        {"max_epochs": 4, "check_val_every_n_epoch": 2},
        {"max_epochs": 2, "val_check_interval": 0.5},
        {"max_epochs": 5, "max_steps": 6},
        {"max_epochs": 3, "limit_train_batches": 4},
        {"max_epochs": 3, "limit_train_batches": 0.5},
        {"max_epochs": -1, "max_steps": 9, "check_val_every_n_epoch": None, "val_check_interval": 3},
    ],
)
def test_the_budget_is_what_lightning_would_train(trainer):
    datamodule = problem(num_pos=4, num_neg=6)
    counts = counted(datamodule, STACO(), **trainer)
    alone = problem(num_pos=4, num_neg=6)
    alone.setup("fit")
    length = length_of(bare_trainer(**trainer), alone.steps_per_epoch, 10, 10)
    assert (length.steps, 10 * length.steps) == (counts.steps, counts.examples)
    assert length.steps == length.between * max(1, counts.validations)  # weights are chosen by one at least


@pytest.mark.parametrize("per_step", [256, 384])
def test_steps_come_near_the_number_of_examples_and_end_with_a_validation(per_step):
    found = length_of(bare_trainer(max_steps=1003), 100, 256, per_step)
    assert found.steps % found.between == 0
    assert found.steps * per_step == pytest.approx(256 * 1003, rel=0.01)


@pytest.mark.filterwarnings("ignore:A step has")
@pytest.mark.parametrize(
    "algorithm", [STACO(), STACO(share_negatives=False), CrossEntropy(), CrossEntropy(balanced=True), FullBatch()]
)
@pytest.mark.parametrize("sizes", [{"num_pos": 4, "num_neg": 6}, {"num_pos": 50}, {"num_pos": 4, "num_dual_neg": 3}])
def test_examples_per_step_are_those_of_a_real_step(algorithm, sizes):
    counts = counted(problem(**sizes), algorithm, max_steps=2)
    datamodule = problem(**sizes)
    datamodule.setup("fit")
    assert examples_per_step(datamodule, algorithm) * counts.steps == counts.examples


def comparison(trials=1, **trainer):
    return Comparison(Setup(None, None, trainer), "somewhere", (0.5, 0.5), trials=trials)


def test_learning_rates_lie_around_the_default():
    assert comparison(max_steps=5).factors == [1.0]
    found = [math.log10(factor) for factor in comparison(6, max_steps=5).factors]
    assert found == pytest.approx([0, 0.5, -0.5, 1, -1, 1.5])
    with pytest.raises(ArgumentError, match="`trials`"):
        comparison(0, max_steps=5)


def test_a_training_without_end_is_refused():
    for trainer in ({}, {"max_epochs": -1}, {"max_time": "00:01:00:00"}):
        with pytest.raises(ArgumentError, match="`max_epochs` or `max_steps`"):
            comparison(**trainer)


def test_methods_by_name():
    usual = ["cross-entropy", "balanced cross-entropy", "cross-entropy without average", "STACO", "PAUCI"]
    assert [m.name for m in chosen_methods(None)] == usual
    with pytest.raises(ArgumentError, match="'STACO3'"):
        chosen_methods(["STACO", "STACO3"])
    for given in (["STACO"], ["STACO", "STACO"]):
        with pytest.raises(ArgumentError, match="at least two methods of different names"):
            chosen_methods(given)


def test_the_best_mean_on_validation_data_is_chosen():
    def runs(*areas, auroc=0.5):
        return [
            Outcome(failed="Not finite") if tpauc is None else Outcome(validation=(tpauc, auroc)) for tpauc in areas
        ]

    tried = {1.0: runs(0.2, 0.4), 2.0: runs(0.5, 0.3), 3.0: runs(0.9, None), 4.0: runs(0.3, 0.5, auroc=0.6)}
    assert best_factor(tried) == 4.0  # of two with equal areas the one with the larger AUROC
    assert best_factor({1.0: runs(0.5), 2.0: runs(0.5)}) == 1.0
    assert best_factor({3.0: tried[3.0]}) is None
