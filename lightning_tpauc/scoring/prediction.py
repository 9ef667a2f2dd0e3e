"""Writes predictions to a file."""

import csv
import io
from collections.abc import Mapping
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader, rank_zero_info
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from lightning_tpauc.distributed import gather_objects, rank, world_size
from lightning_tpauc.errors import ArgumentError, UnsupportedError, warn_on_rank_zero
from lightning_tpauc.files import replacing

#: Entries of the result of ``predict_step`` that are written.
_WRITTEN = ("score", "probability", "decision")


class PredictionWriter(Callback):
    r"""Writes the scores of ``Trainer.predict`` to one CSV file with the columns ``example_id`` and ``score``.

    A module that has a threshold adds ``decision``, 1 or 0, and before it ``probability`` if its scores are calibrated;
    see :class:`~lightning_tpauc.DecisionThreshold`. With several labels each has its columns, such as ``score_liver``
    and ``decision_liver``. A decision is empty if the score is nan, which a warning says, or if the label has no
    threshold.

    Rows are sorted by ``example_id``, the position in the predicted data set. ``id`` follows if the data module has
    names of the rows (``ids`` of :class:`~lightning_tpauc.PosNegDataModule`). Every example is there once, even if
    several processes predict. A ``DataLoader`` may shuffle, or skip examples: its batch sampler tells which ones it
    took. Examples of a stream, and of an iterable that is no ``DataLoader``, are numbered in the order in which they
    come. Such an iterable may hide a loader that shuffles, so there is a warning. Scores are raw, also with
    ``score_activation="sigmoid"``, and have all their digits.

    The file takes the place of an earlier one when it is complete.

    Args:
        path: the file, which ends in ``.csv``; ``None`` is ``predictions.csv`` in the Trainer's log folder.

    Raises:
        ArgumentError: if ``path`` ends in something else, is a folder, or its folder can't be made.
        UnsupportedError: if there are several data loaders, if it is unknown which examples a batch holds, or if
            ``predict_step`` does not return a dictionary with ``"score"``.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_tpauc import DigitsDataModule, TPAUCModule
        >>> module = TPAUCModule(torch.nn.Linear(64, 1))
        >>> quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
        >>> trainer = Trainer(accelerator="cpu", devices=1, callbacks=[PredictionWriter("digits.csv")], **quiet)
        >>> _ = trainer.predict(module, DigitsDataModule())
        >>> with open("digits.csv") as file:
        ...     file.readline().strip(), sum(1 for line in file)
        ('example_id,score', 450)
        >>> from lightning_tpauc import PosNegDataModule
        >>> data = PosNegDataModule(predict_dataset=torch.zeros(2, 64), ids=["P7", "P8"])
        >>> _ = trainer.predict(module, data)
        >>> with open("digits.csv") as file:
        ...     [line.split(",")[:2] for line in file]
        [['example_id', 'id'], ['0', 'P7'], ['1', 'P8']]
    """

    def __init__(self, path: str | None = None) -> None:
        self._given = path
        #: Where the file is, or will be.
        self.path = Path(path or "predictions.csv").expanduser()
        if self.path.suffix.lower() != ".csv":
            raise ArgumentError(f"Expected `path` to end in .csv, as the file is one of text, but got {str(path)!r}.")
        self._parts: list[dict[str, Tensor]] = []
        self._loader: Any = None

    @override
    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget earlier predictions and find the folder."""
        self._parts = []
        loaders = CombinedLoader(trainer.predict_dataloaders).flattened
        if len(loaders) > 1:
            raise UnsupportedError("PredictionWriter takes one data loader, but there are several. Predict on each.")
        self._loader = loaders[0]
        if self._given is None:
            self.path = Path(trainer.log_dir or ".", "predictions.csv")  # collective: rank 0 says
        try:  # before the predictions are made, not after
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_dir():
                raise IsADirectoryError("it is a folder")
        except OSError as error:
            raise ArgumentError(f"Predictions can't be written to `path`, {str(self.path)!r}: {error}.") from error

    @override
    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the batch's scores in the host's memory."""
        labels = getattr(pl_module, "trained_labels", None)
        keys = [""] if labels is None else [f"_{key}" for key in labels.keys]
        score = outputs.get("score") if isinstance(outputs, Mapping) else None
        if not isinstance(score, Tensor) or score.shape[1:] != (() if labels is None else (len(keys),)):
            shape, got = "(N,)" if labels is None else f"(N, {len(keys)})", getattr(score, "shape", type(outputs))
            raise UnsupportedError(f"Expected `predict_step` to return {{'score': tensor {shape}}}, but got {got}.")
        ids = outputs.get("example_id")
        if ids is None:
            first = sum(len(part["example_id"]) for part in self._parts)
            ids = _positions(self._loader, batch_idx, len(score), first)
        said = {name: outputs[name].detach().cpu().reshape(-1, len(keys)) for name in _WRITTEN if name in outputs}
        columns = {f"{name}{key}": values[:, k] for k, key in enumerate(keys) for name, values in said.items()}
        self._parts.append({"example_id": ids.cpu(), **columns})

    @override
    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring the ranks' scores together; rank 0 writes them."""
        own = {name: torch.cat([part[name] for part in self._parts]) for name in (self._parts or [{}])[0]}
        ranks = [part for part in gather_objects(own) if part]  # without those that had no batch
        if rank() == 0:
            ranks = ranks or [{"example_id": torch.empty(0, dtype=torch.int64), "score": torch.empty(0)}]
            columns = {name: torch.cat([part[name] for part in ranks]) for name in ranks[0]}
            self._write(columns)
            missing = torch.stack([own.isnan() for name, own in columns.items() if name.startswith("score")]).any(0)
            if missing.any():
                text = f"{int(missing.sum())} of {len(missing)} predictions are nan and get no decision"
                warn_on_rank_zero(f"{text}: look for nan in their inputs.")
            lack = ": no decisions, the model has no threshold" * all(not n.startswith("decision") for n in columns)
            rank_zero_info(f"Predictions written to {self.path}{lack}")
        self._parts, self._loader = [], None

    def _write(self, columns: dict[str, Tensor]) -> None:
        ids, first = np.unique(columns["example_id"].numpy(), return_index=True)
        if again := len(columns["example_id"]) - len(ids):
            warn_on_rank_zero(f"{again} predictions came for examples that had one already: only the first is written.")
        texts = {name: _texts(name, column[first].tolist(), column.dtype) for name, column in columns.items()}
        if (called := getattr(self._loader, "ids", None)) is not None:
            texts = {"example_id": texts.pop("example_id"), "id": [str(called[k]) for k in ids], **texts}
        with replacing(self.path) as file:
            stream = io.TextIOWrapper(file, encoding="utf-8", newline="")
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(texts)
            writer.writerows(zip(*texts.values(), strict=True))
            stream.detach()  # it has been written, and the file is closed by who opened it


def _texts(name: str, values: list[Any], dtype: torch.dtype) -> list[str]:
    """Numbers with all their digits; nothing for a decision that was not made."""
    if name.startswith("decision"):
        return [str(value) if value >= 0 else "" for value in values]
    kind = ".17g" if dtype == torch.float64 else ".9g" if dtype.is_floating_point else "d"
    return [format(value, kind) for value in values]


def _positions(loader: Any, batch_idx: int, count: int, first: int) -> Tensor:
    """Positions of a batch's examples in the data set; from ``first`` on if one process reads all examples in order.

    Raises:
        UnsupportedError: if they are unknown.
    """
    why, is_stream = None, not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset)
    # Lightning wraps the batch samplers of loaders to predict on
    batches = getattr(getattr(loader, "batch_sampler", None), "seen_batch_indices", None)
    if batches is not None:
        taken = list(batches[batch_idx])
        if len(taken) == count and all(hasattr(position, "__index__") for position in taken):
            return torch.tensor([index(position) for position in taken])
        why = f"one holds {count} scores, but the batch sampler took {len(taken)} examples, as {taken[:3]}"
    elif world_size() > 1:
        why = "several processes predict"
    elif not is_stream:
        why = "the loader makes no batches"
    elif getattr(loader, "num_workers", 0) > 1:
        why = "several workers take turns"
    if why is not None:
        raise UnsupportedError(f"It is unknown which examples the batches hold: {why}. Use a PosNegDataModule.")
    if not isinstance(loader, DataLoader) and batch_idx == 0:
        text = f"`example_id` numbers the examples of a {type(loader).__name__} as they come: wrong if it shuffles"
        warn_on_rank_zero(f"{text}. Predict on a PosNegDataModule or a DataLoader.")
    return torch.arange(first, first + count)
