"""Predictions as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor
from typing_extensions import override

from lightning_tpauc.distributed import rank, world_size
from lightning_tpauc.errors import UnsupportedError

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

__all__ = ("PredictionWriter",)


class PredictionWriter(Callback):
    r"""Writes the scores of ``Trainer.predict`` to one CSV file with the columns ``example_id`` and ``score``.

    Rows are sorted by ``example_id``, the position in the predicted data set, and hold every example once, however many
    processes predict. Scores are raw, whatever the module's ``score_activation`` is, with all digits that they have.

    Args:
        path: the file; ``None`` is ``predictions.csv`` in the Trainer's log folder.

    Raises:
        UnsupportedError: if there are several data loaders, or if several processes predict on data of which nobody
            knows who has which example.

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
    """

    def __init__(self, path: str | None = None) -> None:
        self._given = path
        #: Where the file is, or will be.
        self.path = Path(path or "predictions.csv")
        self._parts: list[dict[str, Tensor]] = []

    @override
    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget earlier predictions and find the folder."""
        self._parts = []
        folder = trainer.log_dir  # collective: rank 0 says
        if self._given is None:
            self.path = Path(folder or ".", "predictions.csv")

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
        if dataloader_idx > 0:
            msg = (
                "PredictionWriter writes one file of one data loader, but there are several. Predict on one after the "
                "other, each with a PredictionWriter(path) of its own."
            )
            raise UnsupportedError(msg)
        score = outputs["score"].detach().cpu()
        if "example_id" in outputs:
            ids = outputs["example_id"].cpu()
        elif world_size() == 1:
            first = sum(len(part["score"]) for part in self._parts)
            ids = torch.arange(first, first + len(score))
        else:
            msg = (
                "Several processes predict, and the batches do not say which examples they hold. Predict on a "
                "PosNegDataModule, or in one process."
            )
            raise UnsupportedError(msg)
        self._parts.append({"example_id": ids, "score": score})

    @override
    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Bring the ranks' scores together; rank 0 writes them."""
        own = {name: torch.cat([part[name] for part in self._parts]) for name in ("example_id", "score")}
        ranks: list[Any] = [own] * world_size()
        if world_size() > 1:
            dist.all_gather_object(ranks, own)
        if rank() == 0:
            ids, scores = (torch.cat([part[name] for part in ranks]) for name in ("example_id", "score"))
            self._write(ids, scores)
            rank_zero_info(f"Predictions written to {self.path}")
        self._parts = []

    def _write(self, ids: Tensor, scores: Tensor) -> None:
        digits = 17 if scores.dtype == torch.float64 else 9
        order = ids.argsort()
        rows = zip(ids[order].tolist(), scores[order].tolist(), strict=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("w", encoding="utf-8") as file:
            file.write("example_id,score\n")
            file.writelines(f"{example},{score:.{digits}g}\n" for example, score in rows)
