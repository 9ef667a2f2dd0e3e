"""The data module for training with positives and negatives drawn apart."""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import Any, Literal

import numpy as np
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray

from lightning_tpauc.data.fetch import fetcher_for, unaugmented
from lightning_tpauc.data.loader import EvalLoader, PosNegLoader
from lightning_tpauc.data.parts import Datasets, EvaluatedPart, TrainingPart, as_dataset, evaluated_part, sampled_rows
from lightning_tpauc.data.position import training_position
from lightning_tpauc.data.sampler import SAMPLERS, BatchSampler, BatchSizes
from lightning_tpauc.data.shards import current_world
from lightning_tpauc.data.splits import check_validation_source, stratified_fold, stratified_holdout
from lightning_tpauc.data.targets import find_targets
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning

__all__ = ("Datasets", "PosNegDataModule")


class PosNegDataModule(LightningDataModule):
    """Joint batches of positives and negatives for training, whole unrepeated batches for evaluation.

    Pass data sets, or subclass and return them from :meth:`build_datasets`. Any map-style data set does: tensors, numpy
    arrays and memory maps, a pair ``(x, y)`` of these, :class:`~torch.utils.data.TensorDataset`, data sets of tuples
    ``(x, y)``, of mappings, of PyG graphs. The batch of global step t depends on ``seed`` and t alone, so a checkpoint
    needs to keep nothing but the number of batches consumed (``batches_seen`` of the module); resuming replays nothing.

    Args:
        train_dataset: training set, with labels 0 and 1.
        val_dataset: validation set; or let ``val_fraction`` or ``num_folds`` split one off.
        test_dataset: test set.
        predict_dataset: data to predict on, with or without labels.
        num_pos: positives per step and rank, S. With fewer positives than S over all ranks, every step has all of them.
        num_neg: negatives per step and rank, B~.
        num_dual_neg: size of the second, independent batch of negatives per step and rank, B. ``None``: ``num_neg`` if
            the module's algorithm needs one, else 0.
        sampling: ``"pos_neg"`` draws the classes apart, ``"uniform"`` draws ``num_pos + num_neg`` examples of the whole
            training set (for cross-entropy), ``"full"`` takes all of it in every step. ``"auto"`` asks the algorithm.
        batch_size: examples per evaluation batch.
        val_fraction: share of the training set that validates instead, stratified, in (0, 1).
        num_folds: number of folds of a stratified cross-validation over the training set.
        fold: the fold that validates, in ``0 .. num_folds - 1``.
        split_seed: seed of the split or of the folds.
        seed: seed of the sampling order and of augmentations.
        num_workers: worker processes per loader.
        pin_memory: whether to use page-locked memory; ``None``: with workers on a GPU.
        targets: the labels of the training set, or the name (attribute or key) under which all data sets keep theirs;
            ``None`` looks for them as :func:`~lightning_tpauc.data.targets.find_targets` says.

    Raises:
        ArgumentError: if arguments contradict each other or are out of range.

    Example:
        >>> import torch
        >>> x, y = torch.randn(100, 3), torch.arange(100) % 10 == 0
        >>> datamodule = PosNegDataModule((x, y), num_pos=2, num_neg=6, val_fraction=0.2)
        >>> datamodule.setup("fit")
        >>> datamodule.num_positives, datamodule.num_negatives, datamodule.steps_per_epoch
        (8, 72, 12)
        >>> batch = next(iter(datamodule.train_dataloader()))
        >>> batch.inputs.shape, batch.num_pos, batch.num_neg
        (torch.Size([8, 3]), 2, 6)
    """

    def __init__(
        self,
        train_dataset: Any = None,
        val_dataset: Any = None,
        test_dataset: Any = None,
        predict_dataset: Any = None,
        *,
        num_pos: int = 32,
        num_neg: int = 32,
        num_dual_neg: int | None = None,
        sampling: Literal["auto", "pos_neg", "uniform", "full"] = "auto",
        batch_size: int = 1024,
        val_fraction: float | None = None,
        num_folds: int | None = None,
        fold: int | None = None,
        split_seed: int = 0,
        seed: int = 0,
        num_workers: int = 0,
        pin_memory: bool | None = None,
        targets: Any = None,
    ) -> None:
        super().__init__()
        self.train_dataset, self.val_dataset = train_dataset, val_dataset
        self.test_dataset, self.predict_dataset = test_dataset, predict_dataset
        self.num_pos, self.num_neg, self.num_dual_neg = num_pos, num_neg, num_dual_neg
        self.sampling, self.batch_size = sampling, batch_size
        self.val_fraction, self.num_folds, self.fold = val_fraction, num_folds, fold
        self.split_seed, self.seed, self.targets = split_seed, seed, targets
        self.num_workers, self.pin_memory = num_workers, pin_memory
        self._check_arguments()
        self._said_capped = False
        self._loaders: list[PosNegLoader | EvalLoader] = []
        self._raw: Datasets | None = None
        self._given = Datasets()
        self._training: TrainingPart | None = None
        self._transformed: Datasets | None = None

    def _check_arguments(self) -> None:
        least = {"num_pos": 1, "num_neg": 1, "num_dual_neg": 0, "batch_size": 1, "num_workers": 0}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                msg = f"Expected `{name}` to be at least {bound}, but got {value}."
                raise ArgumentError(msg)
        if self.sampling not in ("auto", *SAMPLERS):
            msg = f"Expected `sampling` to be 'auto', 'pos_neg', 'uniform' or 'full', but got {self.sampling!r}."
            raise ArgumentError(msg)
        check_validation_source(self.val_dataset, self.val_fraction, self.num_folds, self.fold)

    # ---------------------------------------------------------------- for subclasses

    def build_datasets(self, stage: str | None) -> Datasets:  # noqa: ARG002
        """Return the data sets; override it to read them from files.

        Args:
            stage: ``"fit"``, ``"validate"``, ``"test"``, ``"predict"``, or ``None`` for all.
        """
        return Datasets(self.train_dataset, self.val_dataset, self.test_dataset, self.predict_dataset)

    def fit_transforms(self, datasets: Datasets, train_rows: NDArray[np.int64]) -> Datasets:  # noqa: ARG002
        """Fit preprocessing on the training part only, and return transformed data sets of unchanged lengths.

        Args:
            datasets: what :meth:`build_datasets` returned.
            train_rows: int64 array: rows of ``datasets.train`` that train, without those that validate.
        """
        return datasets

    # ---------------------------------------------------------------- setup

    def setup(self, stage: str | None = None) -> None:
        """Build the data sets; for ``"fit"`` also find labels, split and check sizes. Called by the Trainer."""
        raw = self.build_datasets(stage)
        if self._raw is None or any(new is not old for new, old in zip(raw, self._raw, strict=True)):
            self._raw, self._training, self._transformed = raw, None, None
            self._given = Datasets(*(as_dataset(d, f"{name}_dataset") for name, d in raw._asdict().items()))
        if stage in ("fit", None) and self._given.train is not None:
            self.batch_sampler()
        if stage == "validate" and not self._has_validation():
            msg = "There is no validation set: pass `val_dataset`, or split one off with `val_fraction` or `num_folds`."
            raise DataError(msg)
        if stage == "fit" and self.trainer is not None and not self._has_validation():
            # an empty list of loaders makes Lightning warn; a hook that is not overridden means "no validation" to it
            self.__dict__["val_dataloader"] = MethodType(LightningDataModule.val_dataloader, self)

    def teardown(self, stage: str) -> None:  # noqa: ARG002
        """Stop worker processes."""
        self.__dict__.pop("val_dataloader", None)  # see setup
        for loader in self._loaders:
            loader.close()
        self._loaders.clear()

    def _training_part(self) -> TrainingPart:
        if self._given.train is None:
            msg = "There is no training set: pass `train_dataset`, and call `setup('fit')` first."
            raise DataError(msg)
        if self._training is None:
            labels = find_targets(self._given.train, self.targets)
            rows: tuple[NDArray[np.int64], ...] = ()
            if self.val_fraction is not None:
                rows = stratified_holdout(labels, self.val_fraction, self.split_seed)
            elif self.num_folds is not None and self.fold is not None:
                rows = stratified_fold(labels, self.num_folds, self.fold, self.split_seed)
            self._training = TrainingPart(labels, *rows)
        return self._training

    def _datasets(self) -> Datasets:
        """The data sets after :meth:`fit_transforms`, which needs the split only if it is overridden."""
        if self._transformed is None:
            overridden = type(self).fit_transforms is not PosNegDataModule.fit_transforms
            fit = overridden and self._given.train is not None
            self._transformed = self.fit_transforms(self._given, self._training_part().rows) if fit else self._given
        return self._transformed

    # ---------------------------------------------------------------- what is known after setup

    @property
    def num_positives(self) -> int:
        """Number of training positives, n+."""
        return len(self._training_part().by_class[0])

    @property
    def num_negatives(self) -> int:
        """Number of training negatives, n-."""
        return len(self._training_part().by_class[1])

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch with the current number of ranks: one pass over the larger of n+/S and n-/B steps."""
        return len(self.batch_sampler())

    @property
    def fingerprint(self) -> str | None:
        """16 hex digits that identify which examples the positives 0 .. n+ - 1 are; ``None`` without a training set."""
        return None if self._given.train is None else self._training_part().fingerprint

    def batch_sampler(self) -> BatchSampler:
        """The sampler for the current algorithm.

        Raises:
            DataError: if a class is missing, or one step takes more negatives than there are.
        """
        kind = self._algorithm_says("sampling", self.sampling if self.sampling != "auto" else None) or "pos_neg"
        dual = self.num_dual_neg
        if dual is None:
            dual = self.num_neg if self._algorithm_says("needs_dual_negatives") else 0
        sizes = BatchSizes(self.num_pos, self.num_neg, dual if kind == "pos_neg" else 0)
        sampler = SAMPLERS[kind](*self._training_part().by_class, sizes, self.seed)
        world_size = current_world().size
        sampler.global_sizes(world_size)
        message = sampler.cap_message(world_size)
        if message and not self._said_capped:
            self._said_capped = True
            rank_zero_warn(message, category=TPAUCWarning)
        return sampler

    def _algorithm_says(self, attribute: str, explicit: Any = None) -> Any:
        algorithm = getattr(getattr(self.trainer, "lightning_module", None), "algorithm", None)
        return explicit if explicit is not None else getattr(algorithm, attribute, None)

    # ---------------------------------------------------------------- loaders

    def train_dataloader(self) -> PosNegLoader:
        """Joint batches, from the position of the attached Trainer on."""
        sampler = self.batch_sampler()
        position = None if self.trainer is None else partial(training_position, self.trainer)
        fetch = fetcher_for(self._datasets().train, self.seed)
        loader = PosNegLoader(sampler, fetch, position, self.num_workers, self._pins_memory())
        self._loaders.append(loader)
        return loader

    def val_dataloader(self) -> EvalLoader | list[Any]:
        """Batches of the validation set, of the part split off from the training set, or no loader."""
        datasets = self._datasets()
        if datasets.val is not None:
            return self._eval_loader(evaluated_part(datasets.val, self.targets, "val_dataset"))
        if not self._has_validation():
            return []
        part = self._training_part()
        return self._eval_loader(EvaluatedPart(datasets.train, part.held_out, part.labels[part.held_out]))

    def test_dataloader(self) -> EvalLoader:
        """Batches of the test set."""
        return self._eval_loader(evaluated_part(self._require("test"), self.targets, "test_dataset"))

    def predict_dataloader(self) -> EvalLoader:
        """Batches of the data to predict on; the target is -1 where there are no labels."""
        return self._eval_loader(evaluated_part(self._require("predict"), self.targets, "predict_dataset"))

    def scoring_dataloaders(self, max_negatives: int | None = None) -> tuple[EvalLoader, EvalLoader]:
        """Loaders over the training positives and negatives, for solving the dual variables exactly.

        Args:
            max_negatives: take a random sample of this many negatives, the same each time; all if ``None``.

        Returns:
            (positives, negatives). ``example_id`` counts positives as ``index`` does, 0 .. n+ - 1, and negatives
            0 .. min(n-, max_negatives) - 1.
        """
        positives, negatives = self._training_part().by_class
        negatives = sampled_rows(negatives, max_negatives, self.seed)
        train, labels = self._datasets().train, self._training_part().labels
        pos, neg = (EvaluatedPart(train, rows, labels[rows]) for rows in (positives, negatives))
        return self._eval_loader(pos, persistent=False), self._eval_loader(neg, persistent=False)

    def _eval_loader(self, part: EvaluatedPart, *, persistent: bool = True) -> EvalLoader:
        how = self.batch_size, self.num_workers, self._pins_memory(), persistent
        loader = EvalLoader(part.rows, part.labels, fetcher_for(unaugmented(part.dataset), self.seed), *how)
        self._loaders += [loader] if persistent else []
        return loader

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
