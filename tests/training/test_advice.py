"""What a run says when it can't work: each thing once, with value and remedy, and nothing where nothing is wrong."""

import math
import re
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO, CrossEntropy
from lightning_tpauc.errors import NonFiniteError, TPAUCAdvice
from lightning_tpauc.training.guards import uneven_columns
from tests.helpers.problems import bare_trainer, noisy_labels


def said(speak):
    """The advice that ``speak`` gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        speak()
    return [str(warning.message) for warning in caught if warning.category is TPAUCAdvice]


# ---------------------------------------------------------------- few pairs


def fit(data, algorithm=None, stages=None, lr=0.05, steps=60, **kwargs):
    torch.manual_seed(0)
    sizes = {"num_pos": 16, "num_neg": 48, "val_fraction": 0.3, **kwargs}
    module = TPAUCModule(nn.LazyLinear(1), algorithm or STACO(), lambda p: torch.optim.SGD(p, lr=lr))
    trainer = bare_trainer(max_steps=steps, max_epochs=-1, callbacks=[StageCallback(**(stages or {}))])
    return said(lambda: trainer.fit(module, PosNegDataModule(data, **sizes)))


def test_the_default_batch_sizes_are_judged_as_given_ones_are():
    (message,) = fit(noisy_labels(900, 4, 0.3), STACO(0.95, 0.5), num_pos=None, num_neg=None, steps=5)
    assert message == (
        "Only 3.2 of the 64 positives a step lie in the rectangle with min_tpr=0.95: raise `num_pos` to 80 or more, "
        "if there are so many, or ask for a larger rectangle."
    )


def test_bounds_that_seem_swapped_are_asked_about():
    (message,) = fit(noisy_labels(400, 4, 0.3), STACO(0.2, 0.6), steps=5)
    assert "a model that guesses finds 0.6 of the positives, more than min_tpr=0.2" in message
    assert "are `min_tpr` and `max_fpr` swapped, or in percent?" in message


def test_a_method_without_a_rectangle_to_train_is_not_judged_by_it():
    assert fit(noisy_labels(400, 4, 0.3), CrossEntropy(), num_pos=2) == []


def test_a_run_that_goes_well_says_nothing():
    assert fit(noisy_labels(400, 4, 0.3)) == []


# ---------------------------------------------------------------- columns


def clinic(rows=500, **changes):
    generator = np.random.default_rng(0)
    draw = {"age": (60.0, 1.0), "crp": (0.0, 1.0), "ward": (0.0, 1.0), **changes}
    table = pd.DataFrame({name: mean + sd * generator.normal(size=rows) for name, (mean, sd) in draw.items()})
    first = (table["crp"] - table["crp"].mean()) / table["crp"].std()
    table["died"] = (first + generator.normal(size=rows) > 1.0).astype(int)
    return table


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"age": (0.0, 1.0)}, None),
        ({"age": (0.0, 1.0), "crp": (0.0, 300.0)}, r"Column 'crp' .* standard deviation of .* around .* Standardise"),
        # all are wide, so that the middle one is no measure
        (dict.fromkeys(("age", "crp", "ward"), (0.0, 5e3)), r"Column '\w+' .* standard deviation of"),
        ({"age": (2000.0, 5.0)}, r"Column 'age' of the inputs has a standard deviation of [45].* around 2e\+03"),
    ],
)
def test_columns_that_are_not_standardised_are_named(changes, message):
    for lr in (0.05, 0.001):
        messages = [
            text for text in fit(clinic(**changes), lr=lr, steps=2, targets="died") if text.startswith("Column")
        ]
        assert len(messages) == (message is not None)
        assert message is None or re.match(message, messages[0])


@pytest.mark.parametrize(
    "model", [nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1)), nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 1))]
)
def test_a_model_that_scales_its_inputs_is_not_judged(model):
    assert uneven_columns(torch.randn(50, 3) * torch.tensor([1.0, 1.0, 1e4]), model) is None
    assert uneven_columns(torch.randint(9, (50, 3)), nn.Linear(3, 1)) is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_in_the_inputs_is_named_by_its_column(value):
    """Large batches: the first one has the row."""
    table = clinic()
    table.loc[7, "crp"] = value
    words = r"the inputs of a batch are nan or infinite in 1 of 3 columns: Column 'crp' has 1\. Fill"
    with pytest.raises(NonFiniteError, match=words):
        fit(table, targets="died", num_pos=None, num_neg=340, val_fraction=0.1)
    x, y = noisy_labels(400, 4, 0.3)
    x[y == 1, 2] = value
    with pytest.raises(NonFiniteError, match=r"in 1 of 4 columns: Column 2 has \d+\."):
        fit((x, y), val_fraction=None)
