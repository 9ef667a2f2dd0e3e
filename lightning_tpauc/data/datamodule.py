"""The data module for training with positives and negatives drawn apart."""

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, Literal

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, Trainer
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from lightning_tpauc.data.examples import (
    ArrayDataset,
    Datasets,
    Examples,
    Float,
    Given,
    ItemFetcher,
    columns_of,
    fetcher_for,
    listed,
    names_in,
    unaugmented,
)
from lightning_tpauc.data.loader import EvalLoader, PosNegLoader, training_position
from lightning_tpauc.data.parts import EvaluatedPart, PreparedData, content_digest, describe
from lightning_tpauc.data.sampler import SAMPLERS, BatchSampler, BatchSizes, current_world, sampler_of
from lightning_tpauc.data.seeding import as_seed
from lightning_tpauc.data.splits import Split, check_shares, check_sources
from lightning_tpauc.data.streaming import NegativeStream, ScoredStream, StreamCursor, StreamedLoader
from lightning_tpauc.errors import ArgumentError, DataError, warn_on_rank_zero
from lightning_tpauc.functional.checks import check_choice, check_count

#: Arguments that say what is split off the training set; see :class:`~lightning_tpauc.data.splits.Split`.
SPLIT_ARGUMENTS = ("val_fraction", "num_folds", "fold", "calibration_fraction", "split_seed")
#: Arguments that change what is trained on or how it is divided.
SAMPLING_ARGUMENTS = ("num_pos", "num_neg", "num_dual_neg", "sampling", "batch_size", "seed", *SPLIT_ARGUMENTS)

#: Arguments of a ``DataLoader`` that are passed on.
WORKER_OPTIONS = ("persistent_workers", "prefetch_factor", "timeout", "worker_init_fn", "multiprocessing_context")
# Pairs of arrays and the like are accepted, too. The command line builds data sets from class names.
AnyDataset = Dataset | Any  # type: ignore[type-arg]  # it can't fill in a generic type


class PosNegDataModule(LightningDataModule):
    """Joint batches of positives and negatives for training; every example once for evaluation.

    Pass data sets, or subclass and return them from :meth:`build_datasets`. A data set is one of these:

    - a tensor, numpy array or memory map, or a pair ``(x, y)`` of these;
    - a table of pandas or polars with the labels under ``targets``, or a pair ``(x, y)`` with a table or a sparse
      matrix of scipy;
    - a :class:`~torch.utils.data.TensorDataset`, or any map-style data set of tuples, mappings or PyG graphs.

    The last entry of a tuple is the label, and all others are inputs. Columns of tables are known by their names: all
    data sets, and those that a trained model is given later, are put into the order of the training set. Floats of
    numpy arrive as float32 if the model's weights are float32; tensors keep their dtype. The batch of global step t
    depends on ``seed`` and t alone, so resuming replays nothing.

    Args:
        train_dataset: training set, with labels 0 and 1.
        val_dataset: validation set. Instead, ``val_fraction`` or ``num_folds`` can split one off.
        test_dataset: test set.
        predict_dataset: data to predict on, with or without labels. Tuples shorter than those of the training have
            none. ``None``: the part that ``val_fraction`` or ``num_folds`` splits off.
        negatives: a stream of training negatives: an iterable data set of inputs, or a
            :class:`~lightning_tpauc.NegativeStream` of one. ``train_dataset`` then holds only the positives.
        num_pos: positives per step and rank, S. If the training set has fewer than S for each rank, every step takes
            all of them. With several labels, those in play share them; see
            :mod:`~lightning_tpauc.data.sampler`. ``None``: 64, or 128 with several tasks.
        num_neg: negatives per step and rank, B~. ``None``: 192, or 128 with several tasks, or all if there are fewer.
        num_dual_neg: size of the second, independent batch of negatives per step and rank, B. It is drawn only if the
            module's algorithm reads it. ``None``: ``num_neg``.
        sampling: ``"pos_neg"`` draws the classes apart. ``"uniform"`` draws ``num_pos + num_neg`` examples of the whole
            training set, for cross-entropy. ``"full"`` takes the whole training set in every step. ``"auto"`` asks the
            algorithm.
        steps_per_epoch: length of an epoch. ``None``: until the class that takes more steps has been seen once, which
            takes ``max(ceil(n+ / S), ceil(n- / B~))`` steps, S and B~ summed over the ranks. With rare positives that
            is a pass over the negatives, in which every positive comes several times. A pass over a stream of known
            length takes its length divided by B~ + B steps. With several tasks: until every task has seen all of its
            positives. ``"uniform"``: a pass over all examples; ``"full"``: one step.
        batch_size: examples per evaluation batch.
        val_fraction: share of the training set that validates instead, stratified, in (0, 1). Both parts have both
            classes. An augmented data set validates on its attribute ``without_augmentation``, which has the same rows
            as they are.
        num_folds: number of folds of a stratified cross-validation over the training set.
        fold: the fold that validates, in ``0 .. num_folds - 1``.
        split_seed: seed of the split or of the folds, in ``0 .. 2**32 - 1``.
        seed: seed of the sampling order and of augmentations, in ``0 .. 2**64 - 1``. Lightning's ``seed_everything``
            changes neither this seed nor the split, so a resumed run and a later test see the same order and split.
        num_workers: worker processes per loader.
        pin_memory: whether to use page-locked memory. ``None``: with workers on a GPU.
        collate_fn: makes a batch of a list of items, as in a ``DataLoader``; needed for items that differ in size. It
            receives items as the data set returns them. If they have labels, a returned tuple must end with the labels:
            ``(inputs, labels)``. Anything else is passed to the model, without the entries that arguments name.
        persistent_workers: whether workers stay alive between epochs. They do, unless this is ``False``.
        prefetch_factor: batches that each worker loads ahead. ``None``: 2.
        timeout: seconds to wait for a batch of a worker; 0 waits without limit.
        worker_init_fn: called with the worker's number when a worker starts.
        multiprocessing_context: how workers start, for instance ``"fork"`` or ``"spawn"``.
        calibration_dataset: data that neither train nor validate, on which thresholds and probabilities are chosen; see
            :class:`~lightning_tpauc.DecisionThreshold`. Instead, ``calibration_fraction`` can split some off.
        calibration_fraction: share of the training set that calibrates, stratified, in (0, 1). All folds have the same.
        targets: the labels of the training set; or the name (attribute, key, or column of a table) under which all data
            sets keep them, a list of names for several labels, or a function that turns a label of the data set into 0
            or 1, such as ``lambda label: label == "dead"``; for K classes :class:`~lightning_tpauc.data.OneVsRest`.
            ``None`` searches as :func:`~lightning_tpauc.data.labels.find_targets` does. Several columns are several
            labels; nan means not measured. Columns that ``targets``, ``groups``, ``sample_weight`` or ``ids`` name are
            not inputs.
        groups: what splits keep together, such as patients or scaffolds: one value for each item of the training set,
            or a name: of a column of the table, of an attribute of the data set, or of a key of its items. A name
            applies to all data sets; guarantees and intervals then count groups instead of rows.
        sample_weight: how often each example is drawn for training: numbers of at least 0, or a name as for ``groups``.
            A weight is relative to those of the same class, or to those of all examples if ``sampling="uniform"``. The
            objective is that of a training set which holds each example in proportion to its weight. Examples of weight
            0 do not train. Metrics count every example once.
        ids: what :class:`~lightning_tpauc.PredictionWriter` writes beside positions: one value for each item of
            ``predict_dataset``, of the training set without that, or a name as for ``groups``. ``None``: the index of a
            table, unless it just counts the rows; for the part that is split off, else the rows of the training set.

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

    _cursor: StreamCursor | None = None

    def __init__(
        self,
        train_dataset: AnyDataset = None,
        val_dataset: AnyDataset = None,
        test_dataset: AnyDataset = None,
        predict_dataset: AnyDataset = None,
        *,
        negatives: NegativeStream | IterableDataset | DataLoader | None = None,  # type: ignore[type-arg]  # see there
        num_pos: int | None = None,
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
        collate_fn: Callable[[list[Any]], Any] | None = None,
        persistent_workers: bool | None = None,
        prefetch_factor: int | None = None,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        calibration_dataset: AnyDataset = None,
        calibration_fraction: float | None = None,
        targets: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        ids: Any = None,
    ) -> None:
        super().__init__()
        self.train_dataset, self.val_dataset, self.test_dataset = train_dataset, val_dataset, test_dataset
        self.predict_dataset, self.negatives, self.batch_size = predict_dataset, negatives, batch_size
        self.num_pos, self.num_neg, self.num_dual_neg, self.sampling = num_pos, num_neg, num_dual_neg, sampling
        self.targets, self.groups, self.sample_weight, self.ids = targets, groups, sample_weight, ids
        self.num_folds, self.fold, self.calibration_dataset = num_folds, fold, calibration_dataset
        self.split_seed, self.seed = as_seed(split_seed, "split_seed", bits=32), as_seed(seed, "seed")
        self.num_workers, self.pin_memory, self._epoch_steps = num_workers, pin_memory, steps_per_epoch
        self.collate_fn = collate_fn
        values = persistent_workers, prefetch_factor, timeout or None, worker_init_fn, multiprocessing_context
        options = zip(WORKER_OPTIONS, values, strict=True)
        self.worker_options = {name: value for name, value in options if value is not None}
        self._raw = Datasets()
        self._dtype: Float = None
        self._examples: tuple[tuple[Any, ...], tuple[str, ...] | None, dict[str, Examples]] = ((), None, {})
        self._last: tuple[tuple[Any, ...], PreparedData] | None = None
        self._loaders: list[PosNegLoader | EvalLoader] = []
        counts = {"num_pos": num_pos, "num_neg": num_neg, "steps_per_epoch": steps_per_epoch, "batch_size": batch_size}
        for name, value in {**counts, "num_dual_neg": num_dual_neg, "num_workers": num_workers}.items():
            if value is not None:
                check_count(value, name, 0 if name in ("num_dual_neg", "num_workers") else 1)
        check_choice(sampling, "sampling", ("auto", *SAMPLERS))
        check_sources("validation", val_dataset=val_dataset, val_fraction=val_fraction, num_folds=num_folds)
        check_sources("calibration", calibration_dataset=calibration_dataset, calibration_fraction=calibration_fraction)
        if (num_folds is None) != (fold is None):
            raise ArgumentError(f"Set `num_folds` and `fold` together, but got {num_folds} and {fold}.")
        check_shares(val_fraction=val_fraction, calibration_fraction=calibration_fraction)
        self.val_fraction, self.calibration_fraction = val_fraction, calibration_fraction

    def __str__(self) -> str:
        """The name of its class. Lightning's own text would go through all batches of loaders that are not torch's."""
        return repr(self)

    # ---------------------------------------------------------------- for subclasses

    def build_datasets(self, stage: str | None) -> Datasets:  # noqa: ARG002
        """Return the data sets; override it to read them from files.

        Args:
            stage: ``"fit"``, ``"validate"``, ``"test"``, ``"predict"``, or ``None`` for all.
        """
        given = self.train_dataset, self.val_dataset, self.test_dataset, self.predict_dataset
        return Datasets(*given, self.negatives, self.calibration_dataset)

    def fit_transforms(self, datasets: Datasets, train_rows: NDArray[np.int64]) -> Datasets:  # noqa: ARG002
        """Fit preprocessing on the training part only, and return transformed data sets of unchanged lengths.

        Args:
            datasets: what :meth:`build_datasets` returned.
            train_rows: int64 array: rows of ``datasets.train`` that train, without those that are split off.
        """
        return datasets

    # ---------------------------------------------------------------- setup

    def setup(self, stage: str | None = None) -> None:
        """Build the data sets; for ``"fit"`` also find labels, split and check sizes. Called by the Trainer."""
        raw = self.build_datasets(stage)
        if raw.negatives is not self._raw.negatives:
            self._cursor = None
        self._raw, self._dtype = raw, float_dtype(self.trainer)
        if stage in ("fit", None) and raw.train is not None:
            asked = self.num_pos is not None
            if message := self.batch_sampler().cap_message(current_world().size, asked=asked):
                warn_on_rank_zero(message)
        # or by loaders of a subclass's own
        validates = self._prepared.has("val") or type(self).val_dataloader is not PosNegDataModule.val_dataloader
        if stage == "fit" and self.trainer is not None and not validates:
            # Lightning warns of an empty list of loaders. It takes a hook that is not overridden for "no validation".
            self.__dict__["val_dataloader"] = MethodType(LightningDataModule.val_dataloader, self)

    @property
    def _module(self) -> Any:
        return getattr(self.trainer, "lightning_module", None)

    @property
    def _prepared(self) -> PreparedData:
        """Labels, splits and transformed data, worked out anew where data sets or arguments have changed."""
        learnt = getattr(self._module, "input_layout", None)
        given = Given(self.targets, self.groups, self.sample_weight, self.ids)
        known, key = names_in(learnt, "columns"), (*self._raw, self._dtype, *given)
        if not _same(key, self._examples[0]) or known not in (None, self._examples[1]):
            raw = {part: data for part, data in self._raw._asdict().items() if data is not None and part != "negatives"}
            made, nameless = dict[str, Examples](), learnt == "tensor"
            for part, data in raw.items():
                # Ids that are values belong to one data set; names hold for all.
                has_ids = isinstance(self.ids, str) or part == ("predict" if "predict" in raw else "train")
                made[part] = Examples(data, part, given if has_ids else given._replace(ids=None), self._dtype, known)
                columns = columns_of(made[part].dataset)
                if part == "train":
                    known, nameless = known or columns, nameless or columns is None
                elif (columns is None) if known else (nameless and columns is not None):
                    warn_on_rank_zero(
                        f"The model is trained on {'a table' if known else 'an array'}, and `{part}_dataset` is "
                        f"{'none' if known else 'a table'}: columns without names are taken in their order. Pass "
                        "tables alone to have them taken by name."
                    )
            self._examples = key, known, made
        made, split = self._examples[2], Split(*(getattr(self, name) for name in SPLIT_ARGUMENTS))
        key = (*made.values(), self._raw.negatives, *split)
        if self._last is None or not _same(key, self._last[0]):
            transforms = None if type(self).fit_transforms is PosNegDataModule.fit_transforms else self.fit_transforms
            self._last = key, PreparedData(made, self._raw.negatives, split, transforms)
        return self._last[1]

    def teardown(self, stage: str) -> None:  # noqa: ARG002
        """Stop worker processes."""
        self.__dict__.pop("val_dataloader", None)  # see setup
        for loader in self._loaders:
            loader.close()
        self._loaders.clear()

    def on_exception(self, exception: BaseException) -> None:  # noqa: ARG002
        """Stop worker processes. The Trainer calls it instead of ``teardown``."""
        self.teardown("")

    # ---------------------------------------------------------------- what is known after setup

    @property
    def num_labels(self) -> int | None:
        """Number of labels, K, that the examples have; ``None`` with one."""
        return None if self.label_names is None else len(self.label_names)

    @property
    def label_names(self) -> tuple[str, ...] | None:
        """Names of several labels: of their columns, or their numbers from 0 on; ``None`` with one."""
        return self._prepared.label_names

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the training table's columns that are inputs, in the model's order; ``None`` without a table."""
        train = self._prepared.examples.get("train")
        return None if train is None else columns_of(train.dataset)

    def missing_values(self, part: str = "train") -> dict[str, int]:
        """How many entries of each column of a table are missing (nan), without the columns that have all.

        Args:
            part: ``"train"``, ``"val"``, ``"test"`` or ``"predict"``.
        """
        dataset = getattr(self._prepared.examples.get(part), "dataset", None)
        return dataset.missing() if isinstance(dataset, ArrayDataset) else {}

    @property
    def num_positives(self) -> Any:
        """Number of training positives, n+; with several labels, a tuple with the number of each."""
        return self._prepared.training.num_positives

    @property
    def num_negatives(self) -> int | None:
        """Number of training negatives, n-; for a stream, those of one pass, or ``None`` if nobody knows its length.

        With several labels, these are the examples that are negative for at least one.
        """
        stream = self._stream()
        return len(self._prepared.training.by_class[1]) if stream is None else stream.length

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch with the current number of ranks."""
        return len(self.batch_sampler())

    @property
    def fingerprint(self) -> str | None:
        """16 hex digits that identify which examples the positives 0 .. n+ - 1 are; ``None`` without a training set.

        The inputs count as well, where they are in memory.
        """
        if self._raw.train is None:
            return None
        return content_digest(self._prepared.training.fingerprint, describe(self._prepared.examples["train"].dataset))

    def batch_sampler(self) -> BatchSampler:
        """The sampler for the current algorithm.

        Raises:
            DataError: if a class is missing, or one step takes more negatives than there are.
        """
        algorithm, world_size = getattr(self._module, "algorithm", None), current_world().size
        kind = self.sampling if self.sampling != "auto" else getattr(algorithm, "sampling", "pos_neg")
        stream, prepared, needs_dual = self._stream(), self._prepared, getattr(algorithm, "needs_dual_negatives", None)
        # Several labels share the positives of a step. See benchmarks/README.md.
        usual_pos, usual_neg = (64, 192) if self.num_labels is None else (128, 128)
        if stream is None:
            usual_neg = min(usual_neg, max(1, len(prepared.training.by_class[1]) // world_size))
        num_pos, num_neg = self.num_pos or usual_pos, self.num_neg or usual_neg
        num_dual_neg = (num_neg if needs_dual else 0) if self.num_dual_neg is None else self.num_dual_neg
        reads_dual = kind == "pos_neg" and needs_dual is not False  # None: no algorithm says
        sizes = BatchSizes(num_pos, num_neg, num_dual_neg if reads_dual else 0)
        sampler = sampler_of(prepared.training, kind, sizes, self.seed, stream)
        sampler.epoch_steps = self._epoch_steps
        sampler.global_sizes(world_size)
        return sampler

    @property
    def positive_weights(self) -> NDArray[np.float64] | None:
        """Weights of the training positives, float ``(n_pos,)``; ``None`` without ``sample_weight``."""
        training = self._prepared.training
        return None if training.weights is None else training.weights[training.by_class[0]]

    def input_layout(self) -> Any:
        """The layout of the model's inputs: what the module has learnt, else what the first training item shows."""
        train, known = self._prepared.examples.get("train"), self._layout_of_items
        return train.first_layout(self._prepared.datasets.train) if known is None and train is not None else known

    @property
    def _layout_of_items(self) -> Any:
        """What the module has learnt of its inputs; nothing with a ``collate_fn``, behind which it sees others."""
        return None if self.collate_fn is not None else getattr(self._module, "input_layout", None)

    def description(self, stage: str) -> dict[str, Any]:
        """What all processes of a run must have in common: arguments, and short descriptions of the data of a stage."""
        prepared, examples = self._prepared, self._prepared.examples
        found = {f"`{name}`": getattr(self, name) for name in SAMPLING_ARGUMENTS}
        found["`steps_per_epoch`"] = self._epoch_steps
        parts = ("val", "calibration") if stage in ("fit", "validate") else (stage,)
        if "train" in examples and (stage == "fit" or any(prepared.is_split_off(part) for part in parts)):
            found["`train_dataset`"] = describe(examples["train"].dataset)
            found["rows of the training positives"] = prepared.training.fingerprint
        for part in parts:
            found[f"`{part}_dataset`"] = describe(examples[part].dataset) if part in examples else None
            # A subclass with a loader of its own need not have labels that can be found.
            is_ours = getattr(type(self), f"{part}_dataloader") is getattr(PosNegDataModule, f"{part}_dataloader")
            if part in examples and part != "predict" and is_ours:
                found[f"labels of `{part}_dataset`"] = content_digest(examples[part].labels)
        return found

    # ---------------------------------------------------------------- loaders

    def train_dataloader(self) -> PosNegLoader:
        """Joint batches, from the position of the attached Trainer on."""
        sampler, cursor = self.batch_sampler(), self._stream_cursor()
        position = None if self.trainer is None else partial(training_position, self.trainer)
        make = fetcher_for if cursor is None else ItemFetcher
        dataset, entries = self._prepared.datasets.train, self._prepared.examples["train"].entries
        fetch = make(dataset, self.seed, self.collate_fn, entries)
        kind = PosNegLoader if cursor is None else partial(StreamedLoader, cursor=cursor, seed=self.seed)
        loader = kind(sampler, fetch, position, **self._workers())
        loader.columns = self.columns
        self._loaders.append(loader)
        return loader

    def val_dataloader(self) -> EvalLoader | list[Any]:
        """Batches of the validation set, or of the part split off from the training set; no loader without either."""
        if not self._prepared.has("val"):
            if self.trainer is not None and self.trainer.validating:
                raise DataError("There is no validation set: pass `val_dataset`, `val_fraction` or `num_folds`.")
            return []
        return self._eval_loader(self._prepared.labelled("val", self._layout_of_items))

    def test_dataloader(self) -> EvalLoader:
        """Batches of the test set."""
        return self._eval_loader(self._prepared.labelled("test", self._layout_of_items))

    def calibration_dataloader(self) -> EvalLoader | None:
        """Batches of the part that neither trains nor validates, to choose thresholds on; ``None`` without one."""
        if not self._prepared.has("calibration"):
            return None
        return self._eval_loader(self._prepared.labelled("calibration", self._layout_of_items), persistent=False)

    def predict_dataloader(self) -> EvalLoader:
        """Batches of the data to predict on, or of the part that is split off; the target is -1."""
        part = self._prepared.predicted(self.input_layout())
        if missing := self.missing_values("predict"):
            named = listed(f"{name} ({count})" for name, count in missing.items())
            warn_on_rank_zero(
                f"{sum(missing.values())} cells of `predict_dataset` are empty or infinite: {named}. Without a "
                "model that fills them, these rows get nan and no decision."
            )
        return self._eval_loader(part)

    def scoring_dataloaders(self) -> tuple[EvalLoader, EvalLoader | ScoredStream]:
        """Loaders over the training positives and negatives, for solving the dual variables exactly.

        ``example_id`` counts positives as ``index`` does. Of a stream, the first ``NegativeStream(num_scored=...)``
        negatives are taken. With several labels, the first loader goes through the examples that are positive for some
        label, and the second one through the others that are negative for some label; :meth:`scores_of_tasks` cuts
        their scores.
        """
        stream = self._stream()
        pos, neg = self._prepared.scored(self.seed)
        first = self._eval_loader(pos, persistent=False)
        if stream is not None:
            fetch = ItemFetcher(pos.dataset, self.seed, self.collate_fn, pos.entries)
            return first, ScoredStream(stream, self.batch_size, fetch)
        return first, self._eval_loader(neg, persistent=False)

    def scores_of_tasks(self, pos_scores: Tensor, other_scores: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Scores of each label's positives ``(n+_k,)``, in the order of ``index``, and of its negatives.

        They are taken from those of the two :meth:`scoring_dataloaders`, each ``(num_examples, K)``.
        """
        tasks: Any = self._prepared.training.tasks
        rows = np.concatenate([tasks.some_positive, tasks.others])
        order, device = np.argsort(rows), pos_scores.device
        scores = torch.cat([pos_scores, other_scores.reshape(-1, pos_scores.shape[1])])
        labels = torch.from_numpy(tasks.labels[rows[order]]).to(device)
        columns = zip(scores[torch.from_numpy(order).to(device)].T, labels.T, strict=True)
        return [(its_scores[known == 1], its_scores[known == 0]) for its_scores, known in columns]

    def _eval_loader(self, part: EvaluatedPart, *, persistent: bool = True) -> EvalLoader:
        workers = self._workers() if persistent else self._workers() | {"persistent_workers": False}
        fetch = fetcher_for(unaugmented(part.dataset), self.seed, self.collate_fn, part.entries)
        loader = EvalLoader(part.rows, part.labels, fetch, self.batch_size, **workers)
        loader.ids, loader.groups = part.ids, part.groups
        if persistent:
            self._loaders.append(loader)
        return loader

    def _workers(self) -> dict[str, Any]:
        pins = self.pin_memory
        if pins is None and self.trainer is not None:
            pins = self.num_workers > 0 and self.trainer.strategy.root_device.type == "cuda"
        return {"num_workers": self.num_workers, "pin_memory": bool(pins), **self.worker_options}

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
        return getattr(self._stream_cursor(), "stream", None)

    def _stream_cursor(self) -> StreamCursor | None:
        if self._cursor is None and self._raw.negatives is not None:
            negatives = self._prepared.datasets.negatives
            stream = negatives if isinstance(negatives, NegativeStream) else NegativeStream(negatives)
            self._cursor = StreamCursor(stream)
        return self._cursor


def _same(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two keys hold the same objects, or equal numbers and names."""
    return len(one) == len(other) and all(
        a is b or (isinstance(a, (str, int, float)) and type(a) is type(b) and a == b)
        for a, b in zip(one, other, strict=True)
    )


def float_dtype(trainer: Trainer | None) -> Float:
    """``np.float32`` where floats of numpy, mostly float64, are to become the model's; ``None`` to keep them.

    Precisions such as ``"64-true"`` convert inputs themselves.
    """
    module = getattr(trainer, "lightning_module", None)
    if trainer is None or module is None or str(trainer.precision) in ("64-true", "16-true", "bf16-true"):
        return None
    parameter = next((p for p in module.parameters() if p.is_floating_point()), None)
    model_dtype = torch.get_default_dtype() if parameter is None else parameter.dtype
    return np.float32 if model_dtype == torch.float32 else None
