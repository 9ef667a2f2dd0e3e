"""What a training remembers besides the model, the algorithm and the optimizer."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import asdict
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from lightning_tpauc.distributed import GatheredScores, assign, whole
from lightning_tpauc.errors import CheckpointError
from lightning_tpauc.scoring.operating_point import OperatingPoint
from lightning_tpauc.training.rectangle import RectangleSchedule, ScoreMemory, Step
from lightning_tpauc.training.weights import BestWeights, IterateAverage, PreviousWeights


class Phase(Enum):
    """How far the training of a :class:`TrainingState` has come."""

    #: There was no training, or other weights were loaded since.
    UNTRAINED = "untrained"
    #: A checkpoint was loaded to resume from. Its state is put back when training starts.
    LOADED = "loaded"
    #: Training is going on, or was interrupted, between two steps.
    BETWEEN_STEPS = "between steps"
    #: A training step is going on. The algorithm's state may hold a part of it already.
    IN_STEP = "in step"
    #: Training has ended, and the model holds its result.
    FINISHED = "finished"


class TrainingState:
    """Owns what a training remembers.

    A training calls :meth:`begin` when it starts, :meth:`commit_step` or :meth:`skip_step` for every batch, and
    :meth:`finish` at its end. What it remembers stays in place after that, so that a checkpoint can still be saved,
    until :meth:`forget`.

    Attributes:
        phase: how far the training has come.
        batches_seen: number of training batches consumed so far, which is the position of the data module's sampler.
        step_loss: loss of the last step, whatever a subclass's ``training_step`` returns.
        step_skipped: whether a gradient scaler skipped the last step because of infinite gradients.
        average: anchor and running mean of the weights; ``None`` without a training.
        memory: the remembered training scores; ``None`` unless they are needed.
        previous: the weights before the last update; empty unless the algorithm needs them.
        best: the weights that validated best; ``None`` unless they are kept.
        rectangle_schedule: shrinks the trained rectangle; ``None`` unless that is wanted.
        restored: the loaded checkpoint's content in phase ``LOADED``.
        run: what the state belongs to; see :func:`~lightning_tpauc.training.checkpoint.describe_run`.
        random_before_validation: this rank's random state when the last validation of the training began.
        loss_was_logged: whether callbacks know ``train/loss`` in this run.
        held_out_ratios: of each label, the objective of the last validation's scores divided by that of a constant
            model, at growing tightness.
        last_validated: how many batches the training had seen at its last validation; 0 before the first.
        has_started: whether the module has begun a run in this process.
        is_trained: whether the weights were trained elsewhere: they came from a file or from another process.

    Example:
        >>> net, state = nn.Linear(3, 1), TrainingState()
        >>> state.begin(net, list(net.parameters()))
        >>> state.commit_step(torch.tensor(0.5), None)
        >>> state.phase, state.batches_seen
        (<Phase.BETWEEN_STEPS: 'between steps'>, 1)
    """

    def __init__(self) -> None:
        self.loss_was_logged = self.has_started = self.is_trained = False
        self.forget()

    def forget(self) -> None:
        """Forget every training; called when other weights are loaded, which the averages do not belong to."""
        self.phase = Phase.UNTRAINED
        self.batches_seen = self._step_of_file = 0
        self.step_loss = torch.zeros(())
        self.step_skipped = False
        self.average: IterateAverage | None = None
        self.memory: ScoreMemory | None = None
        self.previous = PreviousWeights()
        self.best: BestWeights | None = None
        self.rectangle_schedule: RectangleSchedule | None = None
        self.restored: dict[str, Any] | None = None
        self.run: dict[str, Any] | None = None
        self.random_before_validation: dict[str, Any] | None = None
        self.held_out_ratios: list[list[float]] = []
        self.last_validated = 0
        self._sharded: list[FSDPModule] = []
        #: All tensors that a training moves, and a copy of the last iterate while the model holds others.
        self._tensors: list[Tensor] = []
        self._iterate: list[Tensor] | None = None

    # ---------------------------------------------------------------- a run's beginning

    def load_checkpoint(self, content: dict[str, Any]) -> None:
        """Keep a checkpoint's content until training starts; the sampler asks for its position before that."""
        self.forget()
        self.phase, self.restored, self.batches_seen = Phase.LOADED, content, content["batches_seen"]

    def note_weights_from_file(self, step: int = 0) -> None:
        """Note that the model holds weights from a file, which were trained for ``step`` batches."""
        self.is_trained, self._step_of_file = True, step

    def begin(self, model: nn.Module, tensors: list[Tensor], run: dict[str, Any] | None = None) -> None:
        """Begin a training that moves these tensors; the caller sets the parts that it needs."""
        self.run, self._tensors, self._iterate = run, tensors, None
        self._sharded = [child for child in model.modules() if isinstance(child, FSDPModule)]
        self.memory = self.best = self.rectangle_schedule = None
        self.held_out_ratios = []
        if self.phase is not Phase.LOADED:
            self.phase = Phase.BETWEEN_STEPS

    # ---------------------------------------------------------------- steps

    def commit_step(self, loss: Tensor, scores: GatheredScores | None) -> None:
        """Take in a step that was taken: the weights that it led to, and its scores unless a line search took it."""
        if self.memory is not None and scores is not None:
            self.memory.add(scores)
        if self.average is not None and self.average.averaged:
            self.average.update()
        self.previous.commit()
        self._end_step(loss, skipped=False)

    def skip_step(self, loss: Tensor) -> None:
        """Count a batch whose step a gradient scaler skipped; nothing of it is remembered."""
        self.previous.discard()
        self._end_step(loss, skipped=True)

    def _end_step(self, loss: Tensor, *, skipped: bool) -> None:
        self.batches_seen += 1
        self.step_loss, self.step_skipped = loss.detach(), skipped
        self.phase = Phase.BETWEEN_STEPS

    def note_validation(self, tpauc: float, auroc: float, operating_point: OperatingPoint | None) -> None:
        """Keep the weights that were validated if they are the best so far."""
        self.last_validated = self.batches_seen
        if self.best is not None:
            self.best.offer(tpauc, auroc, self.batches_seen, operating_point)

    def finish_stage(self, *, adopt: bool) -> None:
        """End a stage: the average is the next anchor and, with ``adopt``, the current weights."""
        if self.average is not None:
            self.average.finish_stage(adopt)
            self.reshard()

    # ---------------------------------------------------------------- which weights the model holds

    @property
    def weights_step(self) -> int:
        """How many training batches the weights to evaluate have seen."""
        if self.phase is Phase.UNTRAINED:
            return self._step_of_file
        holds_best = self.phase is Phase.FINISHED and self.best is not None and math.isfinite(self.best.value[0])
        return self.best.step if holds_best and self.best is not None else self.batches_seen

    def reshard(self) -> None:
        """Let FSDP2 gather the weights again, after something was written into its shards."""
        for child in self._sharded:
            child.reshard()

    @property
    def mean_to_publish(self) -> list[Tensor] | None:
        """The mean of the iterates where it is to be evaluated and saved in place of what the model holds."""
        average = self.average
        if average is None or not (average.is_solution and average.count) or self._iterate is not None:
            return None
        return average.mean or None

    def show_average(self) -> bool:
        """Put the average into the model, if the algorithm has one to evaluate; returns whether this call did."""
        mean = self.mean_to_publish
        if mean is None or self.average is None:
            return False
        self._replace(self.average.averaged, mean)
        return True

    def restore_last_iterate(self) -> None:
        """Put the last iterate back where the average stands in its place; a training's result stays."""
        if self.phase is not Phase.FINISHED and self._iterate is not None:
            assign(self._tensors, self._iterate)
            self._iterate = None
            self.reshard()

    def finish(self) -> bool:
        """Leave the result in the model, the best weights or the average; returns whether that changed the weights."""
        changed = self.show_average()
        if self.best is not None and self.best.weights:
            self._replace(self._tensors, self.best.weights)
            changed = True
        self.phase = Phase.FINISHED
        return changed

    def _replace(self, targets: list[Tensor], sources: list[Tensor]) -> None:
        if self._iterate is None:
            self._iterate = [tensor.detach().clone() for tensor in self._tensors]
        assign(targets, sources)
        self.reshard()

    # ---------------------------------------------------------------- results of another process

    def result(self) -> dict[str, Any]:
        """What is of use after training besides the weights; see :meth:`load_result`."""
        best = None if self.best is None else {**written(self.best), "weights": []}
        return {"batches_seen": self.batches_seen, "step_loss": self.step_loss, "best": best}

    def load_result(self, result: dict[str, Any]) -> None:
        """Take over the :meth:`result` of a training in another process, whose weights the model holds."""
        self.forget()
        self.phase, self.has_started, self.is_trained = Phase.FINISHED, True, True
        self.batches_seen, self.step_loss = result["batches_seen"], result["step_loss"]
        if result["best"] is not None:
            self.best = BestWeights(())
            read(self.best, result["best"])

    # ---------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered, as whole tensors (a collective for sharded ones); needs :meth:`begin` before."""
        iterate = self._tensors if self.mean_to_publish is not None else self._iterate or []
        return {
            **{name: written(getattr(self, name)) for name in _PARTS if getattr(self, name) is not None},
            "iterate": [whole(tensor.detach()) for tensor in iterate],
            "batches_seen": self.batches_seen,
            "last_validated": self.last_validated,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Fill in what :meth:`state_dict` returned; the model gets the last iterate.

        What the settings do not ask for any more is left out.

        Raises:
            CheckpointError: if the run that wrote it kept other anchors and averages.
        """
        average = self.average
        for name in ("anchor", "mean") if average is not None else ():
            if [t.shape for t in getattr(average, name)] != [t.shape for t in state["average"][name]]:
                msg = (
                    "The checkpoint's run kept other anchors and averages: `gamma` was changed between infinity "
                    "(STACO1) and a number (STACO2), `batch_norm` of StageCallback was, or what is trained. Restore it."
                )
                raise CheckpointError(msg)
        for name in _PARTS:
            if getattr(self, name) is not None and name in state:
                read(getattr(self, name), state[name])
        if state["iterate"]:
            assign(self._tensors, state["iterate"])
        self.batches_seen, self.last_validated = state["batches_seen"], state["last_validated"]


#: Attributes of a :class:`TrainingState` whose ``saved`` names what checkpoints hold of them.
_PARTS = ("average", "best", "previous", "memory", "rectangle_schedule")


def written(part: Any) -> dict[str, Any]:
    """The attributes that ``part.saved`` names, as plain values and whole tensors (a collective for sharded ones)."""

    def plain(value: Any) -> Any:
        if isinstance(value, OperatingPoint):
            return asdict(value)
        if isinstance(value, deque):  # of a memory: one tensor, as thousands of steps would make slow files
            joined = [torch.cat(columns, -1) for columns in zip(*value, strict=True)]
            return {"joined": joined, "sizes": [[column.shape[-1] for column in step] for step in value]}
        if isinstance(value, list):
            return [plain(each) for each in value]
        return whole(value.detach()) if isinstance(value, Tensor) else value

    return {name: plain(getattr(part, name)) for name in part.saved}


@torch.no_grad()
def read(part: Any, state: dict[str, Any]) -> None:
    """Restore what :func:`_written` returned; tensors that are there already are filled in place."""
    for name in part.saved:
        own, value = getattr(part, name), state[name]
        if isinstance(own, Tensor):
            value = own.copy_(value) if own.shape == value.shape else own
        elif isinstance(own, deque):
            columns = [joined.to(part.device) for joined in value["joined"]]
            sizes = zip(*value["sizes"], strict=True)
            cut = [column.split(size, -1) for column, size in zip(columns, map(list, sizes), strict=True)]
            value = deque(Step(*step) for step in zip(*cut, strict=True))
        elif name == "operating_point":
            value = None if value is None else OperatingPoint.from_dict(value)
        elif value and isinstance(value, list) and isinstance(value[0], Tensor):
            own = own or [tensor.detach().clone() for tensor in part.tensors]
            if own:
                assign(own, value)
            value = own
        setattr(part, name, value)
