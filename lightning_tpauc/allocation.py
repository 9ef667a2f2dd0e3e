"""What a training keeps besides the model: allocated when it starts, before it is filled or restored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning.pytorch.callbacks import BaseFinetuning, ModelPruning

from lightning_tpauc.batch_norm import batch_norm_statistics
from lightning_tpauc.best_weights import BestWeights
from lightning_tpauc.iterates import WeightIterates
from lightning_tpauc.previous import PreviousWeights
from lightning_tpauc.rectangle_schedule import RectangleSchedule
from lightning_tpauc.scores import ScoreMemory, count_positives
from lightning_tpauc.visits import VisitedPositives

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from lightning_tpauc.callbacks import StageCallback
    from lightning_tpauc.module import TPAUCModule

__all__ = ("allocate",)

#: Of the polynomial average: its weights have a mean age of a tenth of the run.
_DECAY = 8.0
#: What changes which weights are trained: a copy from before would undo it, or be one of a part of the model.
_CHANGERS = (BaseFinetuning, ModelPruning)
#: Negatives that are remembered, unless somebody says otherwise.
_MAX_NEGATIVES = 2**20


def allocate(trainer: Trainer, module: TPAUCModule, stages: StageCallback) -> VisitedPositives | None:
    """Give the module all that the algorithm and the stage callback's settings need.

    Args:
        trainer: whose optimizer and data are there.
        module: what is trained.
        stages: the callback, for its settings.

    Returns:
        What watches which positives are visited, where the data do not say how many there are.

    Raises:
        ArgumentError: if the number of positives is unknown, or contradicts the data.
    """
    num_positives, found = count_positives(trainer, module)
    algorithm, dtype = module.algorithm, module.score_dtype
    algorithm.setup(num_positives, device=module.device, dtype=dtype)
    parameters = [p for group in trainer.optimizers[0].param_groups for p in group["params"]]
    statistics = [b for _, b in batch_norm_statistics(module)]
    module.iterates = WeightIterates(
        parameters,
        statistics if stages.batch_norm == "average" and algorithm.averages_iterates else [],
        anchored=algorithm.proximal_coefficient != 0,
        averaged=algorithm.averages_iterates or algorithm.has_stages,
        is_solution=algorithm.averages_iterates,
        decay=_DECAY if stages.averaging == "polynomial" and not algorithm.has_stages else 0.0,
    )
    callbacks = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__, declared nowhere
    keeps_best = stages.keep_best and trainer.enable_validation and not any(isinstance(c, _CHANGERS) for c in callbacks)
    module.best = BestWeights([*parameters, *statistics]) if keeps_best else None
    # an earlier training may have left them
    algorithm.tightness, module.held_out_ratios = 1.0, []
    shrinks = stages.shrink_rectangle and algorithm.can_shrink_rectangle
    module.rectangle_schedule = RectangleSchedule(algorithm) if shrinks else None
    needed = algorithm.needs_previous
    module.previous = PreviousWeights(parameters if needed else (), recursive=needed == "gradients")
    module.memory = None
    if shrinks or (stages.scores == "remembered" and algorithm.needs_scores("restart")):
        module.memory = ScoreMemory(num_positives, stages.max_negatives or _MAX_NEGATIVES, module.device, dtype)
    return None if found else VisitedPositives(num_positives)
