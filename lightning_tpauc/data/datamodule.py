"""The data module for training with positives and negatives drawn apart."""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import Any, Literal

import numpy as np
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, IterableDataset
from typing_extensions import Unpack

from lightning_tpauc.data.core.datasets import (
    Datasets,
    EvaluatedPart,
    TrainingPart,
    as_dataset,
    float_dtype,
    sampled_rows,
)
from lightning_tpauc.data.core.loader import EvalLoader, PosNegLoader
from lightning_tpauc.data.core.loader_options import LoaderOptions, checked_options
from lightning_tpauc.data.core.position import training_position
from lightning_tpauc.data.core.sampler import SAMPLERS, BatchSampler, BatchSizes
from lightning_tpauc.data.core.seeding import as_seed, say_what_seeds
from lightning_tpauc.data.core.shards import current_world
from lightning_tpauc.data.core.splits import as_fraction, check_validation_source
from lightning_tpauc.data.evaluated import EvaluationData
from lightning_tpauc.data.sampler_factory import Split, make_sampler, make_training_part
from lightning_tpauc.data.streaming.cursor import StreamCursor
from lightning_tpauc.data.streaming.loader import ScoredStream, StreamedLoader
from lightning_tpauc.data.streaming.negatives import NegativeStream, as_stream
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning
from lightning_tpauc.functional.checks import check_count

__all__ = ("Datasets", "PosNegDataModule")

#: Negatives per step and rank where nobody says how many.
_NUM_NEG = 192

#: Pairs of arrays and the like are accepted as well; the command line makes data sets from class names.
AnyDataset = Dataset | Any  # type: ignore[type-arg]  # it can't fill in a generic type


class PosNegDataModule(EvaluationData):
    """Joint batches of positives and negatives for training, whole unrepeated batches for evaluation.

    Pass data sets, or subclass and return them from :meth:`build_datasets`. Any map-style data set does: tensors, numpy
    arrays and memory maps, a pair ``(x, y)`` of these, of tables of pandas or of a sparse matrix of scipy and labels,
    :class:`~torch.utils.data.TensorDataset`, data sets of tuples ``(x, y)``, of mappings, of PyG graphs. Of tuples the
    last entry is the label, and what stands before it are the inputs. Floats of numpy come as float32 where the model's
    weights are; tensors keep their dtype. The batch of global step t depends on ``seed`` and t alone, so a checkpoint
    needs to keep nothing but the number of batches consumed (``batches_seen`` of the module); resuming replays nothing.

    Args:
        train_dataset: training set, with labels 0 and 1.
        val_dataset: validation set; or let ``val_fraction`` or ``num_folds`` split one off.
        test_dataset: test set.
        predict_dataset: data to predict on, with or without labels: tuples that are shorter than those the model was
            trained on have none.
        negatives: a stream of training negatives (an iterable data set of inputs, or a
            :class:`~lightning_tpauc.NegativeStream` of one); ``train_dataset`` then holds the positives alone.
        num_pos: positives per step and rank, S. With fewer positives than S over all ranks, every step has all of them.
        num_neg: negatives per step and rank, B~. ``None``: 192, or all that there are of fewer.
        num_dual_neg: size of the second, independent batch of negatives per step and rank, B; drawn only if the
            module's algorithm reads one. ``None``: ``num_neg``.
        sampling: ``"pos_neg"`` draws the classes apart, ``"uniform"`` draws ``num_pos + num_neg`` examples of the whole
            training set (for cross-entropy), ``"full"`` takes all of it in every step. ``"auto"`` asks the algorithm.
        steps_per_epoch: length of an epoch; ``None``: one pass over the larger of n+/S and n-/B steps, where a stream
            counts if it has a length, with its negatives divided by B~ + B.
        batch_size: examples per evaluation batch.
        val_fraction: share of the training set that validates instead, stratified, in (0, 1); both parts have both
            classes. Where items are augmented, it is validated on the data set's ``without_augmentation``: an attribute
            with a data set of the same rows as they are.
        num_folds: number of folds of a stratified cross-validation over the training set.
        fold: the fold that validates, in ``0 .. num_folds - 1``.
        split_seed: seed of the split or of the folds, in ``0 .. 2**32 - 1``.
        seed: seed of the sampling order and of augmentations, in ``0 .. 2**64 - 1``. Lightning's ``seed_everything``
            changes neither this nor the split, so that a run that is resumed or tested elsewhere sees the same ones.
        num_workers: worker processes per loader.
        pin_memory: whether to use page-locked memory; ``None``: with workers on a GPU.
        collate_fn: makes a batch of a list of items, as a ``DataLoader``'s does; needed where items differ in size. It
            sees items as the data set returns them, and if they have labels, a tuple that it returns ends with them:
            ``(inputs, labels)``. What else it returns goes to the model whole.
        persistent_workers: whether workers live on for the next epoch; they do unless this is ``False``.
        prefetch_factor: batches that each worker loads ahead; ``None``: 2.
        timeout: seconds to wait for a worker's batch; 0 waits for ever.
        worker_init_fn: called in each worker with its number when it starts.
        multiprocessing_context: how workers start, ``"fork"`` or ``"spawn"`` for instance.
        targets: the labels of the training set, or the name (attribute or key) under which all data sets keep theirs;
            ``None`` looks for them as :func:`~lightning_tpauc.data.core.targets.find_targets` says.

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
        train_dataset: AnyDataset = None,
        val_dataset: AnyDataset = None,
        test_dataset: AnyDataset = None,
        predict_dataset: AnyDataset = None,
        *,
        negatives: NegativeStream | IterableDataset | DataLoader | None = None,  # type: ignore[type-arg]  # see there
        num_pos: int = 64,
        num_neg: int | None = None,
        num_dual_neg: int | None = None,
        sampling: Literal["auto", "pos_neg", "uniform", "full"] = "auto",
        steps_per_epoch: int | None = None,
        batch_size: int = 1024,
        val_fraction: float | None = None,
        num_folds: int | None = None,
        fold: int | None = None,
        split_seed: int = 0,
        seed: int = 0,
        num_workers: int = 0,
        pin_memory: bool | None = None,
        targets: Any = None,
        **loader_options: Unpack[LoaderOptions],
    ) -> None:
        super().__init__()
        self.train_dataset, self.val_dataset, self.test_dataset = train_dataset, val_dataset, test_dataset
        self.predict_dataset, self.negatives, self.batch_size = predict_dataset, negatives, batch_size
        self.num_neg, self._takes_what_there_is = (_NUM_NEG, True) if num_neg is None else (num_neg, False)
        self.num_pos, self.num_dual_neg, self.sampling, self.targets = num_pos, num_dual_neg, sampling, targets
        self.val_fraction, self.num_folds, self.fold = val_fraction, num_folds, fold
        self.split_seed, self.seed = as_seed(split_seed, "split_seed", bits=32), as_seed(seed, "seed")
        self.num_workers, self.pin_memory, self._epoch_steps = num_workers, pin_memory, steps_per_epoch
        self.collate_fn, self.worker_options = checked_options(loader_options, num_workers)
        self._check_arguments()
        self._said_capped = False
        self._raw: Datasets | None = None
        self._dtype: type[np.floating[Any]] | None = None
        self._training: TrainingPart | None = None
        self._transformed: Datasets | None = None
        self._cursor: StreamCursor | None = None

    def _check_arguments(self) -> None:
        for name, least in {"num_pos": 1, "num_neg": 1, "batch_size": 1, "num_workers": 0}.items():
            check_count(getattr(self, name), name, least)
        for name, value, least in (("num_dual_neg", self.num_dual_neg, 0), ("steps_per_epoch", self._epoch_steps, 1)):
            if value is not None:
                check_count(value, name, least)
        if self.sampling not in ("auto", *SAMPLERS):
            msg = f"Expected `sampling` to be 'auto', 'pos_neg', 'uniform' or 'full', but got {self.sampling!r}."
            raise ArgumentError(msg)
        check_validation_source(self.val_dataset, self.val_fraction, self.num_folds, self.fold)
        self.val_fraction = None if self.val_fraction is None else as_fraction(self.val_fraction)

    # ---------------------------------------------------------------- for subclasses

    def build_datasets(self, stage: str | None) -> Datasets:  # noqa: ARG002
        """Return the data sets; override it to read them from files.

        Args:
            stage: ``"fit"``, ``"validate"``, ``"test"``, ``"predict"``, or ``None`` for all.
        """
        given = self.train_dataset, self.val_dataset, self.test_dataset, self.predict_dataset
        return Datasets(*given, self.negatives)

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
        raw, dtype = self.build_datasets(stage), float_dtype(self.trainer)
        known = (*(self._raw or ()), self._dtype)
        if self._raw is None or any(new is not old for new, old in zip((*raw, dtype), known, strict=True)):
            self._raw, self._training, self._transformed, self._cursor, self._dtype = raw, None, None, None, dtype
            given = {n: as_dataset(d, f"{n}_dataset", dtype) for n, d in raw._asdict().items() if n != "negatives"}
            self._given = Datasets(**given, negatives=raw.negatives)
        if stage in ("fit", None) and self._given.train is not None:
            self.batch_sampler()
            say_what_seeds(self.seed, self.split_seed)
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
            split = Split(self.val_fraction, self.num_folds, self.fold, self.split_seed)
            streamed = self._given.negatives is not None
            self._training = make_training_part(self._given.train, self.targets, split, positives_only=streamed)
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
        """Number of training negatives, n-; those of one pass where they are a stream.

        Raises:
            DataError: if they are a stream of unknown length.
        """
        stream = self._stream()
        return len(self._training_part().by_class[1]) if stream is None else stream.known_length()

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch with the current number of ranks."""
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
        needs = self._algorithm_says("needs_dual_negatives")
        world_size, stream = current_world().size, self._stream()
        num_neg = self.num_neg
        if self._takes_what_there_is and stream is None:
            num_neg = min(num_neg, max(1, self.num_negatives // world_size))
        dual = self.num_dual_neg if self.num_dual_neg is not None else num_neg if needs else 0
        read = kind == "pos_neg" and needs is not False  # without an algorithm nobody knows
        sizes = BatchSizes(self.num_pos, num_neg, dual if read else 0)
        sampler = make_sampler(kind, self._training_part(), stream, sizes, self.seed, self._epoch_steps)
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
        fetch = self._fetcher(self._datasets().train)
        cursor = self._stream_cursor()
        kind = PosNegLoader if cursor is None else partial(StreamedLoader, cursor=cursor, seed=self.seed)
        loader = kind(sampler, fetch, position, self.num_workers, self._pins_memory(), **self.worker_options)
        self._loaders.append(loader)
        return loader

    def scoring_dataloaders(self, max_negatives: int | None = None) -> tuple[EvalLoader, EvalLoader | ScoredStream]:
        """Loaders over the training positives and negatives, for solving the dual variables exactly.

        Args:
            max_negatives: take a random sample of this many negatives, the same each time; all if ``None``. Of a stream
                the first ones; ``None`` takes ``NegativeStream(num_scored=...)``.

        Returns:
            (positives, negatives). ``example_id`` counts positives as ``index`` does, 0 .. n+ - 1, and negatives
            0 .. ``num_examples`` - 1.
        """
        positives, negatives = self._training_part().by_class
        negatives = sampled_rows(negatives, max_negatives, self.seed)
        train, labels, stream = self._datasets().train, self._training_part().labels, self._stream()
        pos, neg = (EvaluatedPart(train, rows, labels[rows]) for rows in (positives, negatives))
        first = self._eval_loader(pos, persistent=False)
        if stream is not None:
            return first, ScoredStream(stream, max_negatives, self.batch_size, self._fetcher(train))
        return first, self._eval_loader(neg, persistent=False)

    # ---------------------------------------------------------------- a stream of negatives

    def negatives_state(self, step: int) -> dict[str, Any] | None:
        """Where this process's part of the stream stands after ``step`` steps, for a checkpoint."""
        return None if self._cursor is None else self._cursor.state(step)

    def load_negatives_state(self, step: int, states: list[dict[str, Any] | None]) -> None:
        """Go on from a checkpoint that holds the :meth:`negatives_state` of every process."""
        cursor = self._stream_cursor()
        if cursor is not None:
            cursor.load(step, states)

    def _stream(self) -> NegativeStream | None:
        cursor = self._stream_cursor()
        return None if cursor is None else cursor.stream

    def _stream_cursor(self) -> StreamCursor | None:
        if self._cursor is None and self._given.negatives is not None:
            self._cursor = StreamCursor(as_stream(self._datasets().negatives))
        return self._cursor
