"""Scikit-learn's handwritten digits, which need no download."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from lightning_tpauc.data.datamodule import PosNegDataModule
from lightning_tpauc.data.examples import Datasets
from lightning_tpauc.data.splits import holdout
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import require_range


class DigitsDataModule(PosNegDataModule):
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
        super().__init__(
            train_dataset=None, val_dataset=None, test_dataset=None, predict_dataset=None, negatives=None, **kwargs
        )
        if positive_digit not in range(10):
            msg = f"Expected `positive_digit` to be one of 0 to 9, but got {positive_digit}."
            raise ArgumentError(msg)
        self.positive_digit = positive_digit
        self.test_fraction = require_range("test_fraction", test_fraction, 0.0, 1.0, open_low=True, open_high=True)
        self._read: Datasets | None = None

    def build_datasets(self, stage: str | None) -> Datasets:  # noqa: ARG002
        """Load and split at the first call."""
        from sklearn.datasets import load_digits

        if self._read is None:
            images, digits = load_digits(return_X_y=True)
            x = torch.from_numpy((images / 16.0).astype(np.float32))
            y = torch.from_numpy((digits == self.positive_digit).astype(np.int64))
            train, test = holdout(y.numpy().astype(np.int8), self.test_fraction, seed=0)
            test_set = TensorDataset(x[test], y[test])
            self._read = Datasets(train=TensorDataset(x[train], y[train]), test=test_set, predict=test_set)
        return self._read
