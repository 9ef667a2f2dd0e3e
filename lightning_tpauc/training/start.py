"""The start of a training, new or resumed: room for what it remembers, warm-up, rectangle and dual variables."""

from __future__ import annotations

from functools import partial

import torch
from lightning.pytorch import Trainer

from lightning_tpauc.training.checkpoint import describe_run, restore
from lightning_tpauc.training.scores import VisitedPositives, count_positives, score_training_tasks
from lightning_tpauc.training.state import ToRemember
from lightning_tpauc.training.trained_module import TrainedModule


def allocate(trainer: Trainer, module: TrainedModule, wanted: ToRemember) -> VisitedPositives | None:
    """Make room for all that the algorithm and the settings need; it is filled or restored afterwards.

    Returns:
        What counts the positives that training visits; ``None`` if the data say how many there are.

    Raises:
        ArgumentError: if the number of positives is unknown, or contradicts the data.
    """
    algorithm, device, dtype = module.algorithm, module.device, module.score_dtype
    given = getattr(module, "num_positives", None)
    num_positives, found = count_positives(trainer, given, type(module).__name__)
    labels = module.trained_labels
    described = num_positives if isinstance(num_positives, int) or labels is None else labels.tasks(num_positives)
    algorithm.setup(described, device=device, dtype=dtype)
    weights = getattr(getattr(trainer, "datamodule", None), "positive_weights", None)
    if weights is not None:
        algorithm.positive_weights = torch.from_numpy(weights).to(device, dtype)
    algorithm.tightness, module.held_out_ratios = 1.0, []  # an earlier training may have left others
    parameters = [p for group in trainer.optimizers[0].param_groups for p in group["params"]]
    module.training_state.run = describe_run(module, trainer)
    module.training_state.allocate(wanted, algorithm, module, parameters, device=device, dtype=dtype)
    return VisitedPositives(num_positives) if isinstance(num_positives, int) and not found else None


def start(trainer: Trainer, module: TrainedModule, max_negatives: int | None) -> None:
    """Begin a new training: warm-up, rectangle and dual variables."""
    state, algorithm = module.training_state, module.algorithm
    module.begin_warmup()
    if state.rectangle_schedule is not None:
        state.rectangle_schedule.start()
    scores = score_training_tasks(module, max_negatives) if algorithm.needs_scores("start") else None
    if scores is not None and state.memory is not None:
        state.memory.fill(scores)  # type: ignore[arg-type]  # it is of as many tasks
        state.memory.forget_negatives()
    algorithm.start(scores)
    keep = partial(state.best.offer, operating_point=module.operating_point) if state.best is not None else None
    module.trained_start.offer(trainer, keep)


def resume(module: TrainedModule) -> bool:
    """Go on from the loaded checkpoint, if there is one.

    Args:
        module: the module to resume, allocated.

    Returns:
        Whether there was a checkpoint; if not, the run is a new one.
    """
    state = module.training_state
    entry = state.take_restored()
    if entry is None:
        return False
    restore(module, entry)
    return True
