"""How long methods train, and which learning rate is chosen."""

import math
from dataclasses import replace

import pytest
import torch
from lightning.pytorch import Callback

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO, CrossEntropy, FullBatch
from lightning_tpauc.comparison.plan import (
    Cell,
    Outcome,
    Run,
    as_budget,
    best_factor,
    chosen_methods,
    examples_per_step,
    rate_factors,
)
from lightning_tpauc.comparison.store import Store
from lightning_tpauc.errors import ArgumentError, DataError
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
    budget = as_budget(trainer, alone.steps_per_epoch, 10)
    assert budget.examples == counts.examples == 10 * counts.steps
    assert budget.validations == max(1, counts.validations)  # weights are chosen by one at least


def test_a_training_without_end_is_refused():
    for trainer in ({}, {"max_epochs": -1}, {"max_time": "00:01:00:00"}):
        with pytest.raises(ArgumentError, match="`max_epochs` or `max_steps`"):
            as_budget(trainer, 10, 10)


def test_steps_come_near_the_budget_and_end_with_a_validation():
    budget = as_budget({"max_steps": 1003}, 100, 256)
    steps, between = budget.steps(256)
    assert steps % between == 0
    assert steps == pytest.approx(1003, rel=0.01)


@pytest.mark.filterwarnings("ignore:The training set has 12 positives")
@pytest.mark.parametrize(
    "algorithm", [STACO(), STACO(share_negatives=False), CrossEntropy(), CrossEntropy(balanced=True), FullBatch()]
)
@pytest.mark.parametrize("sizes", [{"num_pos": 4, "num_neg": 6}, {"num_pos": 50}, {"num_pos": 4, "num_dual_neg": 3}])
def test_examples_per_step_are_those_of_a_real_step(algorithm, sizes):
    counts = counted(problem(**sizes), algorithm, max_steps=2)
    datamodule = problem(**sizes)
    datamodule.setup("fit")
    assert examples_per_step(datamodule, algorithm) * counts.steps == counts.examples


def test_learning_rates_lie_around_the_default():
    assert rate_factors(1) == (1.0,)
    found = [math.log10(factor) for factor in rate_factors(6)]
    assert found == pytest.approx([0, 0.5, -0.5, 1, -1, 1.5])
    with pytest.raises(ArgumentError, match="`trials`"):
        rate_factors(0)


def test_methods_by_name():
    assert [m.name for m in chosen_methods(None)] == ["cross-entropy", "balanced cross-entropy", "STACO", "PAUCI"]
    with pytest.raises(ArgumentError, match="'STACO3'"):
        chosen_methods(["STACO", "STACO3"])
    for given in (["STACO"], ["STACO", "STACO"]):
        with pytest.raises(ArgumentError, match="at least two methods of different names"):
            chosen_methods(given)


def test_the_best_mean_on_validation_data_is_chosen():
    values = {1.0: (0.2, 0.4), 2.0: (0.5, 0.3), 3.0: (0.9, None), 4.0: (0.5, 0.3)}
    outcomes = {
        factor: [
            Outcome("failed", "Not finite")
            if value is None
            else Outcome("finished", validation={"tpauc": value, "auroc": 0.1 * factor})
            for value in found
        ]
        for factor, found in values.items()
    }
    assert best_factor(outcomes) == 4.0  # of two with equal areas the one with the larger AUROC
    assert best_factor({3.0: outcomes[3.0]}) is None
    assert best_factor({1.0: [None, None]}) is None


def test_the_store_keeps_what_it_got(tmp_path):
    store, cell = Store(tmp_path / "cells", Outcome), Cell("a", 1.0, Run(0, 2), "train", {"x": 1})
    assert store.get(cell) is None
    outcome = Outcome("finished", seconds=1.5, curve=[{"step": 1.0}])
    store.add(cell, outcome, {"scores": torch.arange(3)})
    again = Store(tmp_path / "cells", Outcome)
    assert again.get(cell) == outcome
    assert again.tensors(cell)["scores"].tolist() == [0, 1, 2]
    assert again.get(replace(cell, identity={"x": 2})) is None
    assert [key for key, _ in again] == [cell.key]


def test_what_cant_be_written_or_read_is_one_line(tmp_path):
    cell = Cell("a", 1.0, Run(0, None), "train")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"Can't write results to .*file"):
        Store(tmp_path / "file" / "cells", Outcome).add(cell, Outcome("finished"))
    store = Store(tmp_path, Outcome)
    for text in ("{", "[]", '{"key": {}, "outcome": {"colour": 1}}'):
        store.path(cell).write_text(text)
        with pytest.raises(DataError, match=r"is not a file of results .*Remove it"):
            store.get(cell)
