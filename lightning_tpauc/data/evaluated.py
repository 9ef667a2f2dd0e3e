"""The evaluation half of the data module: loaders that yield every example once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray

from lightning_tpauc.data.core.datasets import (
    Datasets,
    EvaluatedPart,
    TrainingPart,
    evaluated_part,
    predicted_part,
    training_layout,
)
from lightning_tpauc.data.core.description import describe, digest
from lightning_tpauc.data.core.fetch import Fetcher, collate_by, fetcher_for, is_random, unaugmented
from lightning_tpauc.data.core.loader import EvalLoader, PosNegLoader
from lightning_tpauc.errors import DataError, TPAUCWarning

__all__ = ("SAMPLING_ARGUMENTS", "EvaluationData")

#: Arguments that change what is trained on or how it is divided.
SAMPLING_ARGUMENTS = (
    "num_pos",
    "num_neg",
    "num_dual_neg",
    "sampling",
    "batch_size",
    "val_fraction",
    "num_folds",
    "fold",
    "split_seed",
    "seed",
)


class EvaluationData(LightningDataModule):
    """Base of :class:`~lightning_tpauc.PosNegDataModule`, which holds the arguments and says which data sets there are.

    Example:
        >>> from lightning_tpauc import PosNegDataModule
        >>> issubclass(PosNegDataModule, EvaluationData)
        True
    """

    batch_size: int
    num_workers: int
    pin_memory: bool | None
    collate_fn: Callable[[list[Any]], Any] | None
    worker_options: dict[str, Any]
    seed: int
    targets: Any
    val_fraction: float | None
    num_folds: int | None
    _epoch_steps: int | None

    def __init__(self) -> None:
        super().__init__()
        self._loaders: list[PosNegLoader | EvalLoader] = []
        self._given = Datasets()
        self._evaluated: dict[str, EvaluatedPart] = {}
        self._looked_for_augmentation = False

    def description(self, stage: str) -> dict[str, Any]:
        """What all processes of a run are to have in common: arguments, and the data in a few characters.

        Args:
            stage: ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``.
        """
        datasets = self._datasets()
        found: dict[str, Any] = {f"`{name}`": getattr(self, name) for name in SAMPLING_ARGUMENTS}
        found["`steps_per_epoch`"] = self._epoch_steps
        splits = stage == "fit" or (stage == "validate" and datasets.val is None)
        named = {"fit": ("train", "val"), "validate": ("val",)}.get(stage, (stage,))
        for name in dict.fromkeys(("train", *named)) if splits else named:
            dataset = getattr(datasets, name)
            found[f"`{name}_dataset`"] = None if dataset is None else describe(dataset)
            loader = f"{name}_dataloader"
            ours = name in ("val", "test") and getattr(type(self), loader) is getattr(EvaluationData, loader)
            if dataset is not None and ours:  # nobody else's has to find labels
                found[f"labels of `{name}_dataset`"] = digest(self._labelled(name, dataset).labels)
        if splits and datasets.train is not None:
            part = self._training_part()
            found["rows of the training positives"] = part.fingerprint
            found["rows that train"], found["rows that validate"] = digest(part.rows), digest(part.held_out)
        return found

    def _training_part(self) -> TrainingPart:
        raise NotImplementedError

    def _datasets(self) -> Datasets:
        raise NotImplementedError

    def on_exception(self, exception: BaseException) -> None:  # noqa: ARG002
        """Stop worker processes; called by the Trainer, which then skips ``teardown``."""
        for loader in self._loaders:
            loader.close()

    def val_dataloader(self) -> EvalLoader | list[Any]:
        """Batches of the validation set, of the part split off from the training set, or no loader."""
        datasets = self._datasets()
        if datasets.val is not None:
            return self._eval_loader(self._labelled("val", datasets.val))
        if not self._has_validation():
            return []
        part = self._training_part()
        if not self._looked_for_augmentation:
            self._looked_for_augmentation = True
            self._warn_of_augmentation(datasets.train, part.held_out)
        return self._eval_loader(EvaluatedPart(datasets.train, part.held_out, part.labels[part.held_out]))

    def test_dataloader(self) -> EvalLoader:
        """Batches of the test set."""
        return self._eval_loader(self._labelled("test", self._require("test")))

    def predict_dataloader(self) -> EvalLoader:
        """Batches of the data to predict on; the target is -1 where there are no labels."""
        return self._eval_loader(predicted_part(unaugmented(self._require("predict")), self.targets, self.input_layout))

    def input_layout(self) -> Any:
        """What the model's inputs consist of: what its module knows from its training, else the training set's first.

        ``None`` if there is neither; see :func:`~lightning_tpauc.data.core.layout.layout`.
        """
        known = getattr(getattr(self.trainer, "lightning_module", None), "input_layout", None)
        if self.collate_fn is not None:  # items are asked for, and the model sees something else
            known = None
        return training_layout(self._datasets().train) if known is None and self._given.train is not None else known

    def _labelled(self, name: str, dataset: Any) -> EvaluatedPart:
        """A data set with its labels, which are looked for once: that may take a pass over all items."""
        part = self._evaluated.get(name)
        if part is None or part.dataset is not dataset:
            part = self._evaluated[name] = evaluated_part(dataset, self.targets, f"{name}_dataset")
        return part

    def _warn_of_augmentation(self, dataset: Any, rows: NDArray[np.int64]) -> None:
        if unaugmented(dataset) is dataset and is_random(dataset, rows[:4]):
            rank_zero_warn(
                "The items of `train_dataset` are random, augmented perhaps, and so are those that validate. Give the "
                "data set an attribute `without_augmentation`, a data set with the same rows as they are, or pass a "
                "`val_dataset`.",
                category=TPAUCWarning,
            )

    def _eval_loader(self, part: EvaluatedPart, *, persistent: bool = True) -> EvalLoader:
        how = self.batch_size, self.num_workers, self._pins_memory()
        fetch = self._fetcher(unaugmented(part.dataset))
        options = self.worker_options if persistent else self.worker_options | {"persistent_workers": False}
        loader = EvalLoader(part.rows, part.labels, fetch, *how, **options)
        self._loaders += [loader] if persistent else []
        return loader

    def _fetcher(self, dataset: Any) -> Fetcher:
        key = self.targets if isinstance(self.targets, str) else None
        collate = None if self.collate_fn is None else partial(collate_by, self.collate_fn, key)
        return fetcher_for(dataset, self.seed, collate)

    def _has_validation(self) -> bool:
        split = self.val_fraction is not None or self.num_folds is not None
        return self._given.val is not None or (self._given.train is not None and split)

    def _require(self, name: str) -> Any:
        dataset = getattr(self._datasets(), name)
        if dataset is None:
            msg = f"There is no data set for this: pass `{name}_dataset`, or return `{name}` from `build_datasets`."
            raise DataError(msg)
        return dataset

    def _pins_memory(self) -> bool:
        if self.pin_memory is not None or self.trainer is None:
            return bool(self.pin_memory)
        return self.num_workers > 0 and self.trainer.strategy.root_device.type == "cuda"
