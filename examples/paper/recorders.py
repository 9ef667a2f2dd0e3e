"""Callbacks that keep what a trial reports: training curves, and the weights of the best validation."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback
from torch import Tensor
from typing_extensions import override

from lightning_tpauc.data.batch import EvalBatch
from lightning_tpauc.functional import tpauc_objective, two_way_partial_auroc
from lightning_tpauc.metrics.reporting import Rectangle, metric_name
from lightning_tpauc.scoring.forward import device_batches
from lightning_tpauc.training.rectangle import score_training_set

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightning.pytorch import LightningModule, Trainer

    from lightning_tpauc.module import TPAUCModule

__all__ = ("BestWeights", "CurveRecorder", "objective_name", "raw_scores")

#: Negatives that a point of a training curve scores; 20,000 put its standard error below 0.004.
#: The paper's loss, whatever a method trains with.
SURROGATE: dict[str, Any] = {"surrogate": "squared_hinge", "margin": 0.5}


class CurveRecorder(Callback):
    """Exact training objective, training TPAUC and the method's own loss, at the given steps.

    The first two are those of the solution so far: STACO's is an average, so this is what training would return if it
    stopped there. The last is the mean of what the steps since the point before returned, which is what ``train/loss``
    logs; it is missing from points without such steps.

    Args:
        steps: after how many steps to look.
        trained: rectangle that is trained on.
        rectangles: rectangles that are reported.
    """

    def __init__(self, steps: Iterable[int], trained: Rectangle, rectangles: Sequence[Rectangle]) -> None:
        self.steps = set(steps)
        self.trained, self.rectangles = trained, rectangles
        self.curve: list[dict[str, float]] = []
        self._losses: list[Tensor] = []

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if 0 in self.steps:
            self._look(pl_module)  # type: ignore[arg-type]

    @override
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        module: TPAUCModule = pl_module  # type: ignore[assignment]
        self._losses.append(outputs["loss"])
        if module.training_state.batches_seen in self.steps:
            self._look(module)

    def _look(self, module: TPAUCModule) -> None:
        shown = module.training_state.show_average()
        ((pos, neg),) = score_training_set(module) or ()
        if shown:
            module.training_state.restore_last_iterate()
        scores = torch.cat([pos, neg])
        target = torch.cat([torch.ones_like(pos), torch.zeros_like(neg)]).long()
        point = {
            "step": float(module.training_state.batches_seen),
            "objective": float(tpauc_objective(pos, neg, *self.trained, **SURROGATE)),
        }
        for rectangle in self.rectangles:
            name = metric_name(rectangle)
            point[name] = float(two_way_partial_auroc(scores, target, *rectangle))
            point[objective_name(rectangle)] = float(tpauc_objective(pos, neg, *rectangle, **SURROGATE))
        if self._losses:
            point["loss"] = float(torch.stack(self._losses).mean())
        self._losses = []
        self.curve.append(point)


def objective_name(rectangle: Rectangle) -> str:
    """What a point of a curve calls the exact objective of a rectangle.

    Example:
        >>> objective_name(Rectangle(0.5, 0.5))
        'objective_tpauc_tpr50_fpr50'
    """
    return f"objective_{metric_name(rectangle)}"


class BestWeights(Callback):
    """The weights of the best validation for each rectangle; the Trainer holds the average while this looks.

    Args:
        rectangles: rectangles that are reported.
    """

    def __init__(self, rectangles: Sequence[Rectangle]) -> None:
        self.values: dict[Rectangle, float] = dict.fromkeys(rectangles, -1.0)
        self.weights: dict[Rectangle, dict[str, Tensor]] = {}

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module: TPAUCModule = pl_module  # type: ignore[assignment]
        own = Rectangle(module.algorithm.min_tpr, module.algorithm.max_fpr)
        for rectangle in self.values:
            name = "tpauc" if rectangle == own else metric_name(rectangle)
            value = float(trainer.callback_metrics[f"val/{name}"])
            if value > self.values[rectangle]:
                self.values[rectangle] = value
                self.weights[rectangle] = copy.deepcopy(pl_module.state_dict())


@torch.no_grad()
def raw_scores(module: TPAUCModule, loader: Iterable[EvalBatch]) -> tuple[Tensor, Tensor]:
    """Raw scores and targets of all batches, on the CPU: sigmoids would tie the largest scores.

    Args:
        module: attached to a Trainer.
        loader: yields :class:`~lightning_tpauc.EvalBatch`.
    """
    module.to(module.trainer.strategy.root_device).eval()  # a Trainer that has finished leaves its model on the CPU
    scores, targets = [], []
    for batch in device_batches(module, loader, "Scoring"):
        scores.append(module.raw_scores(batch.inputs).cpu())
        targets.append(batch.target.cpu())
    return torch.cat(scores), torch.cat(targets)
