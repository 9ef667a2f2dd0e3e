"""Brings the result of a training in spawned or forked processes back to the process that started them.

Lightning's ``ddp_spawn``, ``ddp_fork`` and ``ddp_notebook`` train copies of the module and bring back the first one's
``state_dict`` alone. So that ``state_dict`` carries the rest, which the module that loads it takes out.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus

from lightning_tpauc.algorithms.base import Task
from lightning_tpauc.lightning_fixes.plain_values import make_plain
from lightning_tpauc.lightning_fixes.unsupported import starts_processes
from lightning_tpauc.scoring.labels import Labels
from lightning_tpauc.scoring.operating_point import restored_point
from lightning_tpauc.training.compatibility import KEY
from lightning_tpauc.training.trained_module import TrainedModule


def give_back(module: TrainedModule, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Add the rest of the result to the ``state_dict`` that Lightning brings back; leave any other one alone."""
    trainer = module._trainer
    # only the launcher asks for it in this state: after all hooks of the run
    if prefix or trainer is None or not starts_processes(trainer):
        return
    if (trainer.state.fn, trainer.state.status) != (TrainerFn.FITTING, TrainerStatus.FINISHED):
        return
    point, algorithm = module.operating_point, module.algorithm
    entry: dict[str, Any] = {
        "training": module.training_state.result(),
        "labels": None if module.trained_labels is None else module.trained_labels.state_dict(),
        "operating_point": None if point is None else point.state_dict(),
        "held_out_ratios": module.held_out_ratios,
        "input_layout": module.input_layout,
        "base_lr": list(module.base_lr),
    }
    if algorithm.num_positives is not None:
        tasks = None if algorithm.tasks is None else [tuple(task) for task in algorithm.tasks]
        entry["algorithm"] = {"num_positives": algorithm.num_positives, "tasks": tasks, "state": algorithm.state_dict()}
    make_plain(entry)
    state[KEY] = entry


def take_back(module: TrainedModule, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Take what :func:`give_back` added out of a ``state_dict``, and bring the module into its state after training."""
    entry = state.pop(KEY, None) if not prefix else None
    if entry is None:
        return
    dtypes = {state[name].dtype for name, _ in module.named_parameters() if name in state}
    if len(dtypes) == 1:  # a Trainer in double or half precision converted the whole module that it trained
        module.to(dtypes.pop())
    labels = None if entry["labels"] is None else Labels.from_state_dict(entry["labels"])
    module.knows_labels = True
    if labels != module.trained_labels:
        module.evaluate_labels(labels)
    algorithm, trained = module.algorithm, entry.get("algorithm")
    if trained is not None:
        tasks = trained["tasks"]
        sizes = trained["num_positives"] if tasks is None else [Task(*task) for task in tasks]
        algorithm.setup(sizes, device=module.device, dtype=module.score_dtype)
        algorithm.load_state_dict(trained["state"])
    module.training_state.load_result(entry["training"])
    point = entry["operating_point"]
    module.operating_point = None if point is None else restored_point(point)
    module.held_out_ratios, module.input_layout = entry["held_out_ratios"], entry["input_layout"]
    module.base_lr = (entry["base_lr"][0], entry["base_lr"][1])
