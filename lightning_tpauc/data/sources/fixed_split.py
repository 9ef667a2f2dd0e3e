"""Data modules of data sets that come with a training, a validation and a test part."""

from __future__ import annotations

from typing import Any

from lightning_tpauc.data.core.datasets import Datasets
from lightning_tpauc.data.datamodule import PosNegDataModule
from lightning_tpauc.errors import ArgumentError


class GivenSplitDataModule(PosNegDataModule):
    """Base of data modules of a data set with a fixed split; subclasses define :meth:`load`.

    Args:
        train_with_val: whether to join the validation part to the training part. ``val_fraction`` or ``num_folds`` can
            then split off validation rows (cross-validation, as in the paper).
        **kwargs: arguments of :class:`~lightning_tpauc.PosNegDataModule`.

    Raises:
        ArgumentError: validation has two sources: the given part, and ``val_fraction`` or ``num_folds``.
    """

    def __init__(self, *, train_with_val: bool = False, **kwargs: Any) -> None:
        # Named, so that the command line does not offer data sets as arguments.
        super().__init__(
            train_dataset=None, val_dataset=None, test_dataset=None, predict_dataset=None, negatives=None, **kwargs
        )
        self.train_with_val = train_with_val
        self._loaded: Datasets | None = None
        splits = [name for name in ("val_fraction", "num_folds") if getattr(self, name) is not None]
        if splits and not train_with_val:
            msg = (
                f"Got `{splits[0]}`, but the data set has a validation part already. Set `train_with_val=True` to join "
                f"it to the training part and split both, or leave `{splits[0]}` out."
            )
            raise ArgumentError(msg)

    def load(self) -> Datasets:
        """Read the files; if ``train_with_val``, ``train`` holds both parts and ``val`` is ``None``."""
        raise NotImplementedError

    def build_datasets(self, stage: str | None) -> Datasets:  # noqa: ARG002  # the parts share their files
        """The parts; predictions are made on the test part."""
        if self._loaded is None:
            loaded = self.load()
            self._loaded = loaded._replace(predict=loaded.test)
        return self._loaded
