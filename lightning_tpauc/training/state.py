"""What a training remembers besides model, algorithm and optimizer: the average, the last but one, the best weights.

The parameters come from the optimizer's groups and not from the module, because under FSDP2 only the former are always
the sharded tensors. Every operation is elementwise, so that the same code works on plain tensors and on DTensors.

The weights before the last update are for SONX, which corrects its running estimates by the change of the scores, and
PAUCI, whose gradient estimate is a recursion over the gradients at both weights. The additional forward pass draws the
same dropout masks as the step's own one and does not change running statistics.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.random import fork_rng

from lightning_tpauc.algorithms.base import Algorithm
from lightning_tpauc.algorithms.pauci import RecursiveAlgorithm
from lightning_tpauc.distributed import GatheredScores, assign, reshard, whole, world_size
from lightning_tpauc.errors import CheckpointError
from lightning_tpauc.functional.pairwise import common_dtype
from lightning_tpauc.lightning_fixes.checkpoint_files import plain as plain_value
from lightning_tpauc.scoring.thresholds import OperatingPoint
from lightning_tpauc.training.rectangle import RectangleSchedule, ScoreMemory, Step


class IterateAverage:
    r"""Anchor and running mean of the trained weights over one stage.

    With ``decay`` :math:`\eta`, :math:`\bar w \leftarrow \bar w + \frac{1 + \eta}{k + \eta} (w - \bar w)`. At 0 that is
    the plain mean; above, iterate k weighs about :math:`k^\eta`, however long the run is (polynomial-decay averaging,
    Shamir and Zhang, ICML 2013). If ``is_solution``, the mean is evaluated and saved as the model's weights.

    Attributes:
        count: how many iterates of this stage the mean holds.
        stage: number of finished stages.
    """

    saved = ("count", "stage", "anchor", "mean")

    def __init__(
        self,
        parameters: Iterable[Tensor],
        buffers: Iterable[Tensor] = (),
        *,
        anchored: bool = True,
        averaged: bool = True,
        is_solution: bool = True,
        decay: float = 0.0,
    ) -> None:
        self.is_solution, self.decay = is_solution, decay
        self.parameters = list(parameters)
        self.averaged = [*self.parameters, *buffers] if averaged else []
        self.anchor = [_copy(p) for p in self.parameters] if anchored else []
        self.mean = [_copy(p) for p in self.averaged]
        self.count = self.stage = 0

    @torch.no_grad()
    def update(self) -> None:
        r"""Add the current weights to the mean, after a step."""
        self.count += 1
        if self.mean:
            means = _local(self.mean)
            iterate = [value.to(mean.dtype) for mean, value in zip(means, _local(self.averaged), strict=True)]
            torch._foreach_lerp_(means, iterate, (1.0 + self.decay) / (self.count + self.decay))

    @torch.no_grad()
    def add_proximal_gradient(self, coefficient: float) -> None:
        r"""Add :math:`c\,(w - w_0)` to the gradients, as (eqn:ww) has it."""
        trained = [(p, w0) for p, w0 in zip(self.parameters, self.anchor, strict=True) if p.grad is not None]
        if trained:
            gradients, anchors = _local([p.grad for p, _ in trained]), _local([w0 for _, w0 in trained])
            current = [p.to(w0.dtype) for p, w0 in zip(_local([p for p, _ in trained]), anchors, strict=True)]
            pulls = [d.to(g.dtype) for d, g in zip(torch._foreach_sub(current, anchors), gradients, strict=True)]
            torch._foreach_add_(gradients, pulls, alpha=coefficient)

    @torch.no_grad()
    def finish_stage(self, adopt: bool = True) -> None:
        """End a stage: the mean becomes the next anchor and, with ``adopt``, the current weights (STACO2; not AUCM)."""
        if self.count and self.mean:
            if adopt:
                assign(self.averaged, self.mean)
            assign(self.anchor, self.mean[: len(self.anchor)])
        else:
            assign(self.anchor, [p.detach() for p in self.parameters][: len(self.anchor)])
        self.count = 0
        self.stage += 1


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to(common_dtype(tensor), copy=True)


def _local(tensors: Iterable[Any]) -> list[Tensor]:
    """This rank's shards: torch's operations on lists refuse to mix sharded and ordinary tensors."""
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


class PreviousWeights:
    r"""Keeps :math:`w_{t-1}` and, for recursive methods, the gradient estimate :math:`v_{t-1}`.

    A step scores its batch in :meth:`swapped_in` before its own forward pass. It calls :meth:`estimate` on the unscaled
    gradients, :meth:`remember` before the optimizer's step, and then :meth:`commit`, or :meth:`discard` if a gradient
    scaler skipped the step.
    """

    saved = ("weights", "estimates")

    def __init__(self, parameters: Iterable[Tensor] = (), recursive: bool = False) -> None:
        self.tensors = list(parameters)
        self.recursive = recursive
        self.weights: list[Tensor] = []
        self.estimates = [torch.zeros_like(p, dtype=common_dtype(p)) for p in self.tensors] if recursive else []
        self._next_weights: list[Tensor] = []
        self._next_estimates: list[Tensor] = []

    def estimate(self, algorithm: Algorithm) -> None:
        """Replace the accumulated gradients by the direction of a recursive method's step."""
        if not isinstance(algorithm, RecursiveAlgorithm):
            return
        trained = [k for k, p in enumerate(self.tensors) if p.grad is not None]
        gradients = [p.grad for p in self.tensors if p.grad is not None]
        new = algorithm.estimate_(gradients, [self.estimates[k] for k in trained])
        self._next_estimates = list(self.estimates)
        for k, estimate in zip(trained, new, strict=True):
            self._next_estimates[k] = estimate

    def remember(self) -> None:
        """Copy the current weights, before the optimizer changes them."""
        self._next_weights = [p.detach().clone() for p in self.tensors]

    def commit(self) -> None:
        """After a step that was taken, make the remembered weights the previous ones."""
        self.weights, self.estimates = self._next_weights, self._next_estimates
        self.discard()

    def discard(self) -> None:
        """After a step that was skipped, keep the previous weights."""
        self._next_weights, self._next_estimates = [], []

    @contextmanager
    def swapped_in(self, model: nn.Module) -> Iterator[None]:
        """The model holds the previous weights inside; statistics and random numbers are put back afterwards."""
        device = self.tensors[0].device
        current = [p.detach().clone() for p in self.tensors]
        buffers = [b.clone() for b in model.buffers()]
        assign(self.tensors, self.weights)
        reshard(model)
        try:
            with torch.set_grad_enabled(self.recursive), fork_rng([device] if device.type == "cuda" else []):
                yield
        finally:
            assign(self.tensors, current)
            assign(model.buffers(), buffers)
            reshard(model)


class BestWeights:
    """A copy of the weights with the best validation so far.

    Of two validations with the same ``val/tpauc``, such as 0.0 where the ROC curve passes below the rectangle, the
    larger ``val/auroc`` decides. ``step`` is the number of batches that training had seen then.
    """

    saved = ("value", "step", "operating_point", "weights")

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors = list(tensors)
        self.weights: list[Tensor] = []
        self.value = (-math.inf, -math.inf)
        self.step = 0
        self.operating_point: OperatingPoint | None = None

    @torch.no_grad()
    def offer(self, tpauc: float, auroc: float, step: int, operating_point: OperatingPoint | None = None) -> None:
        """Copy the model's weights if their validation is better than all before; nan is never better."""
        if math.isnan(tpauc) or not (tpauc, auroc) > self.value:
            return
        self.value, self.step, self.operating_point = (tpauc, auroc), step, operating_point
        self.weights.clear()  # before there are two copies
        self.weights += [t.detach().clone() for t in self.tensors]


def batch_norm_statistics(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of the floating running statistics of all batch normalisations in ``module``."""
    for prefix, child in module.named_modules():
        if isinstance(child, nn.modules.batchnorm._NormBase):
            for name in ("running_mean", "running_var"):
                statistic = getattr(child, name)
                if isinstance(statistic, Tensor):
                    yield f"{prefix}.{name}" if prefix else name, statistic


@torch.no_grad()
def agree_on_statistics(model: nn.Module, average: IterateAverage | None = None) -> None:
    """Average over ranks the statistics and their averages, which DDP lets drift apart; a collective."""
    world = world_size()
    if world == 1:
        return
    averaged = average.mean[len(average.parameters) :] if average is not None else []
    for statistic in (*(statistic for _, statistic in batch_norm_statistics(model)), *averaged):
        dist.all_reduce(statistic)
        statistic.div_(world)


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
    """Owns what a training remembers, from :meth:`begin` until :meth:`forget`.

    Attributes:
        batches_seen: number of training batches consumed so far, which is the position of the data module's sampler.
        step_loss: loss of the last step, whatever a subclass's ``training_step`` returns.
        step_skipped: whether a gradient scaler skipped the last step because of infinite gradients.
        average, memory, previous, best, rectangle_schedule: the parts; ``None`` (``previous``: empty) if not needed.
        restored: the loaded checkpoint's content in phase ``LOADED``.
        run: what the state belongs to; see :func:`~lightning_tpauc.training.checkpoint.describe_run`.
        random_before_validation: this rank's random state when the last validation of the training began.
        loss_was_logged: whether callbacks know ``train/loss`` in this run.
        held_out_ratios: of each label, the objective of the last validation's scores divided by that of a constant
            model, at growing tightness.
        last_validated: how many batches the training had seen at its last validation; 0 before the first.
        has_started: whether the module has begun a run in this process.
        is_trained: whether the weights were trained elsewhere: they came from a file or from another process.
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
        self._model: Any = None
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
        self.run, self._model, self._tensors, self._iterate = run, model, tensors, None
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
            reshard(self._model)

    # ---------------------------------------------------------------- which weights the model holds

    @property
    def weights_step(self) -> int:
        """How many training batches the weights to evaluate have seen."""
        if self.phase is Phase.UNTRAINED:
            return self._step_of_file
        holds_best = self.phase is Phase.FINISHED and self.best is not None and math.isfinite(self.best.value[0])
        return self.best.step if holds_best and self.best is not None else self.batches_seen

    @property
    def mean_to_publish(self) -> list[Tensor] | None:
        """The mean of the iterates where it is to be evaluated and saved in place of what the model holds."""
        average = self.average
        if average is None or not (average.is_solution and average.count) or self._iterate is not None:
            return None
        return average.mean or None

    def show_average(self) -> None:
        """Put the average into the model, if the algorithm has one to evaluate."""
        mean = self.mean_to_publish
        if mean is not None and self.average is not None:
            self._replace(self.average.averaged, mean)

    def restore_last_iterate(self) -> None:
        """Put the last iterate back where the average stands in its place; a training's result stays."""
        if self.phase is not Phase.FINISHED and self._iterate is not None:
            assign(self._tensors, self._iterate)
            self._iterate = None
            reshard(self._model)

    def finish(self) -> None:
        """Leave the result in the model: the best weights, or else the average."""
        self.show_average()
        if self.best is not None and self.best.weights:
            self._replace(self._tensors, self.best.weights)
        self.phase = Phase.FINISHED

    def _replace(self, targets: list[Tensor], sources: list[Tensor]) -> None:
        if self._iterate is None:
            self._iterate = [tensor.detach().clone() for tensor in self._tensors]
        assign(targets, sources)
        reshard(self._model)

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
        """Fill in what :meth:`state_dict` returned, as far as the settings still ask for it."""
        average = self.average
        for name in ("anchor", "mean") if average is not None else ():
            if [t.shape for t in getattr(average, name)] != [t.shape for t in state["average"][name]]:
                raise CheckpointError(
                    "The checkpoint's run averaged other weights: `gamma` was changed between infinity (STACO1) and a "
                    "number (STACO2), or other layers are frozen. Go back to its settings."
                )
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
            return plain_value(asdict(value), "operating_point")
        if isinstance(value, deque):  # of a memory: one tensor, as thousands of steps would make slow files
            joined = [torch.cat(columns, -1) for columns in zip(*value, strict=True)]
            return {"joined": joined, "sizes": [[column.shape[-1] for column in step] for step in value]}
        if isinstance(value, list):
            return [plain(each) for each in value]
        return whole(value.detach()) if isinstance(value, Tensor) else value

    return {name: plain(getattr(part, name)) for name in part.saved}


@torch.no_grad()
def read(part: Any, state: dict[str, Any]) -> None:
    """Restore what :func:`written` returned; tensors that are there already are filled in place."""
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
