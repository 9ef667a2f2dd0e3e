"""Scikit-learn's handwritten digits, which need no download."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from lightning_tpauc.data.examples import Datasets
from lightning_tpauc.data.source_files import SourceDataModule
from lightning_tpauc.data.splits import holdout
from lightning_tpauc.functional.checks import check_choice, require_range


class DigitsDataModule(SourceDataModule):
    """One digit against the nine others: 1,797 images of 8 x 8 pixels, about a tenth of them positive.

    Images are flattened to float32 vectors of length 64 in [0, 1].

    Args:
        positive_digit: the positive class, 0 to 9.
        test_fraction: share of the test set, in (0, 1). The split is stratified and the same for every seed.
        **kwargs: arguments of :class:`~lightning_tpauc.PosNegDataModule`, without its data sets.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> datamodule = DigitsDataModule(val_fraction=0.2)
        >>> datamodule.setup()
        >>> datamodule.num_positives, datamodule.num_negatives
        (104, 973)
    """

    def __init__(self, positive_digit: int = 8, test_fraction: float = 0.25, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice(positive_digit, "positive_digit", range(10))
        self.positive_digit = positive_digit
        self.test_fraction = require_range("test_fraction", test_fraction, 0.0, 1.0, open_low=True, open_high=True)

    def load(self) -> Datasets:
        """The digits, split in two."""
        from sklearn.datasets import load_digits

        images, digits = load_digits(return_X_y=True)
        x = torch.from_numpy((images / 16.0).astype(np.float32))
        y = torch.from_numpy((digits == self.positive_digit).astype(np.int64))
        rows = holdout(y.numpy().astype(np.int8), self.test_fraction, seed=0)
        train, test = (TensorDataset(x[part], y[part]) for part in rows)
        return Datasets(train=train, test=test)
