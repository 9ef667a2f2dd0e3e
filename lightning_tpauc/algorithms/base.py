"""What every training method shares: declared state, one calling convention, rectangles, stages, unit of the loss."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from statistics import fmean
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_tpauc.algorithms.state import DeclaredState
from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional.checks import (
    as_index,
    check_choice,
    check_range,
    check_rectangle,
    eager,
    require_range,
    widest_float,
)
from lightning_tpauc.functional.pairwise import TaskMasks, in_play, there
from lightning_tpauc.functional.staco import bounded_loss_unit, loss_unit_step, tail_mean_loss
from lightning_tpauc.functional.surrogates import Surrogate, get_surrogate

#: Values of :attr:`Algorithm.tightness` at which validation evaluates the objective.
TIGHTNESS_GRID: tuple[float, ...] = tuple(k / 20 for k in range(21))


class TrainingScores(NamedTuple):
    """Scores of the training set under one set of weights, for solving the dual variables.

    Attributes:
        pos_scores: float tensor of shape ``(n_pos,)``; entry i belongs to positive i.
        neg_scores: float tensor of shape ``(m,)``: all negatives, or a sample of them.
    """

    pos_scores: Tensor
    neg_scores: Tensor


class PreviousScores(NamedTuple):
    """Scores of the same batch under the weights before the last update.

    Attributes:
        pos_scores: float tensor of shape ``(S,)``.
        neg_scores: float tensor of shape ``(B~,)``.
    """

    pos_scores: Tensor
    neg_scores: Tensor


class Task(NamedTuple):
    """One of several labels that are trained at once.

    Attributes:
        num_positives: number of its positive training examples.
        min_tpr: lower bound of its true positive rate; the algorithm's if ``None``.
        max_fpr: upper bound of its false positive rate; the algorithm's if ``None``.
        weight: what it counts for in the loss, at least 0; only ratios matter.
    """

    num_positives: int
    min_tpr: float | None = None
    max_fpr: float | None = None
    weight: float = 1.0


def shrunk_rectangle(min_tpr: float, max_fpr: float, tightness: float) -> tuple[float, float]:
    """The rectangle on the line from (0, 1) to ``(min_tpr, max_fpr)``.

    Example:
        >>> shrunk_rectangle(0.8, 0.2, 0.5)
        (0.4, 0.6)
    """
    if tightness == 1.0:  # exactly, not up to rounding
        return min_tpr, max_fpr
    return tightness * min_tpr, 1.0 - tightness * (1.0 - max_fpr)


def count_in_loss(tasks: Sequence[Task] | None) -> list[bool]:
    """Of each label, whether its weight is above 0; of one where there is one."""
    return [True] if tasks is None else [task.weight > 0.0 for task in tasks]


class Algorithm(DeclaredState, ABC):
    r"""Base class of all training methods.

    A subclass declares its state in ``__init__`` with :meth:`add_state` and implements :meth:`step`. Calling the
    algorithm performs one step on its own variables, in place, and returns a scalar whose gradient is the direction for
    the model's weights.

    Args:
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1).
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1].

    Raises:
        ArgumentError: if the rectangle is empty or not inside the unit square.
    """

    #: Learning rate of DampedAdam where the user gives no optimizer; see benchmarks/defaults.py.
    default_lr: ClassVar[float] = 0.01
    #: What the weights continue from after a stage; the next anchor is the stage's average either way.
    stage_iterate: ClassVar[Literal["average", "last"]] = "average"
    #: Whether the algorithm wants raw scores even where the model's ``score_activation`` is a sigmoid.
    takes_logits: ClassVar[bool] = False
    #: Whether the algorithm is made for scores in [0, 1] and may go wrong on others.
    takes_probabilities: ClassVar[bool] = False
    #: Whether training may begin with the unit square and shrink it to the rectangle that was asked for.
    can_shrink_rectangle: ClassVar[bool] = False
    #: Whether a step takes several labels at once; then :meth:`step` takes ``masks``.
    takes_tasks: ClassVar[bool] = False

    def __init__(self, min_tpr: float = 0.5, max_fpr: float = 0.5) -> None:
        super().__init__()
        self.min_tpr, self.max_fpr = check_rectangle(min_tpr, max_fpr)
        #: What :meth:`setup` was told about each of several labels.
        self.tasks: tuple[Task, ...] | None = None
        #: Weight of each training positive, float ``(n_pos,)``; ``None`` unless batches draw by weights.
        self.positive_weights: Tensor | None = None
        #: Current learning rate over the initial one; multiplies the algorithm's own step sizes.
        self.step_scale = 1.0
        #: By how much a score grows when the model's output grows by one from 0: 1, or 0.25 behind a sigmoid.
        self.score_slope = 1.0
        self._tightness: tuple[float, ...] = (1.0,)

    def __repr__(self) -> str:
        """The class, its rectangle, and the other arguments that are not at their defaults."""
        shown = {"min_tpr": repr(self.min_tpr), "max_fpr": repr(self.max_fpr)}
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, parameter.default)
            text = repr(value.name if isinstance(value, Surrogate) else value)
            if text != repr(parameter.default):  # as text, since `==` of tensors is no bool
                shown[name] = text
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in shown.items())})"

    # ---------------------------------------------------------------- rectangles

    @property
    def tightness(self) -> float:
        """How far the trained rectangle has shrunk from the unit square, 0, to the one that was asked for, 1.

        For several labels this is the mean. Setting it sets the tightness of every label.
        """
        return self._tightness[0] if len(set(self._tightness)) == 1 else fmean(self._tightness)

    @tightness.setter
    def tightness(self, value: float) -> None:
        self.tightness_of_tasks = (value,) * (self.num_tasks or 1)

    @property
    def tightness_of_tasks(self) -> tuple[float, ...]:
        """:attr:`tightness` of each label."""
        return self._tightness

    @tightness_of_tasks.setter
    def tightness_of_tasks(self, values: Sequence[float]) -> None:
        self._tightness = tuple(values)
        if self.tasks is not None:  # on the device already, so that no step has to send them there
            weights = self._per_task["weights"]
            exact = torch.tensor(self.rectangles, dtype=widest_float(weights.device), device=weights.device)
            self._per_task["thetas"] = torch.stack([1.0 - exact[:, 0], exact[:, 1]])

    @property
    def asked_rectangles(self) -> list[tuple[float, float]]:
        """``(min_tpr, max_fpr)`` that was asked for, for each label."""
        return [(self.min_tpr, self.max_fpr)] if self.tasks is None else [self._asked(task) for task in self.tasks]

    def _asked(self, task: Task) -> tuple[float, float]:
        return check_rectangle(
            self.min_tpr if task.min_tpr is None else task.min_tpr,
            self.max_fpr if task.max_fpr is None else task.max_fpr,
        )

    @property
    def rectangles(self) -> list[tuple[float, float]]:
        """The rectangle that is trained at the moment, for each label."""
        return [shrunk_rectangle(*asked, t) for asked, t in zip(self.asked_rectangles, self._tightness, strict=True)]

    @property
    def rectangle(self) -> tuple[float, float]:
        """The rectangle that is trained at the moment: ``(min_tpr, max_fpr)`` once ``tightness`` is 1.

        For several labels this is the rectangle of one that has none of its own, at the mean ``tightness``.
        """
        return self.rectangle_at(self.tightness)

    def rectangle_at(self, tightness: float, task: int | None = None) -> tuple[float, float]:
        """The rectangle on the line from (0, 1), where every pair counts, to ``(min_tpr, max_fpr)``.

        Args:
            tightness: how far along that line, in [0, 1].
            task: which of several labels, for one that has a rectangle of its own.
        """
        asked = (self.min_tpr, self.max_fpr) if task is None else self.asked_rectangles[task if self.tasks else 0]
        return shrunk_rectangle(*asked, tightness)

    @property
    def thetas(self) -> tuple[float | Tensor, float | Tensor]:
        r""":math:`(\theta_0, \theta_1)` of the trained rectangle.

        Numbers for one label; for several, tensors ``(K,)`` of the device's most precise dtype.
        """
        if self.tasks is not None:
            theta0, theta1 = self._per_task["thetas"].unbind()
            return theta0, theta1
        min_tpr, max_fpr = shrunk_rectangle(self.min_tpr, self.max_fpr, self._tightness[0])
        return 1.0 - min_tpr, max_fpr

    def thetas_of(self, state: Tensor) -> tuple[float | Tensor, float | Tensor]:
        """:attr:`thetas`, tensors in the dtype of ``state``."""
        if self.tasks is None:
            return self.thetas
        theta0, theta1 = self._per_task["thetas"].to(state).unbind()
        return theta0, theta1

    # ---------------------------------------------------------------- capabilities

    @property
    def sampling(self) -> Literal["pos_neg", "uniform", "full"]:
        """How batches are drawn: positives and negatives apart, uniformly from the training set, or all of it."""
        return "pos_neg"

    @property
    def needs_dual_negatives(self) -> bool:
        """Whether a step uses a second, independent batch of negatives."""
        return False

    @property
    def has_stages(self) -> bool:
        """Whether training restarts from averaged iterates after every stage."""
        return False

    @property
    def averages_iterates(self) -> bool:
        """Whether the returned solution is an average of the iterates."""
        return self.has_stages

    @property
    def proximal_coefficient(self) -> float:
        """The c of the term c (w - w0) in the weights' gradient; w0 are the weights at the stage's start."""
        return 0.0

    @property
    def needs_previous(self) -> Literal["scores", "gradients"] | None:
        """What a step needs under the weights before the last update, on the same batch; see ``previous``."""
        return None

    @property
    def step_sizes(self) -> dict[str, str]:
        """Which argument is the step size of which state; an error about that state names it."""
        return {}

    @property
    def starts_from_batch(self) -> bool:
        """Whether the next batch will do where :meth:`needs_scores` asks for scores that can't be had."""
        return False

    def needs_scores(self, event: Literal["start", "restart"]) -> bool:  # noqa: ARG002
        """Whether :meth:`start` or :meth:`restart` solves the dual variables from the training scores."""
        return False

    def diagnostics(self) -> dict[str, Tensor]:
        """Scalars that tell how the run goes; may cost O(n_pos)."""
        return {}

    # ---------------------------------------------------------------- state

    def setup(
        self,
        num_positives: int | Sequence[int | Task],
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Allocate the declared state, for one label or for several.

        Args:
            num_positives: number of positive training examples, or a sequence of these numbers for several labels. A
                label with a rectangle or a weight of its own is given as a :class:`Task` instead of a number.
            device: where the state lives; the default device if ``None``.
            dtype: ``torch.float32`` or ``torch.float64``.

        Raises:
            ArgumentError: if a number is below 1, ``dtype`` is a half-precision type, or a rectangle or weight is out
                of range.
            UnsupportedError: if several labels are given to a method that takes one.
        """
        counts: Any = num_positives
        if isinstance(counts, (Tensor, np.ndarray)):
            counts = counts.tolist()
        tasks = None
        if isinstance(counts, Sequence) and not isinstance(counts, str):
            if not self.takes_tasks:
                msg = f"{type(self).__name__} trains one label: pass one number as `num_positives`."
                raise UnsupportedError(msg)
            tasks = tuple(task if isinstance(task, Task) else Task(task) for task in counts)
            counts = [task.num_positives for task in tasks]
            shares = self._shares_of_loss(tasks)
        super().setup(counts, device=device, dtype=dtype)
        self.tasks = tasks
        if tasks is not None:
            self._per_task["weights"] = torch.tensor(shares, device=device, dtype=dtype)
        self.positive_weights = None
        self.tightness = self.tightness  # the mean, for as many labels as there are now

    def _shares_of_loss(self, tasks: Sequence[Task]) -> list[float]:
        """The weights of labels, divided by their sum; checks these and the rectangles."""
        for task in tasks:
            self._asked(task)
        weights = [require_range("weight", task.weight, 0.0) for task in tasks]
        if tasks and not any(weights):
            msg = f"Expected a `weight` above 0 of one label at least, but got {weights}."
            raise ArgumentError(msg)
        return [weight / sum(weights) for weight in weights]

    def state_dict(self) -> dict[str, Any]:
        """All that the algorithm remembers, with its ``tightness`` if the rectangle can shrink."""
        tightness = self.tightness if self.tasks is None else list(self.tightness_of_tasks)
        return {**super().state_dict(), **({"tightness": tightness} if self.can_shrink_rectangle else {})}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, in place; see :meth:`DeclaredState.load_state_dict`."""
        super().load_state_dict({name: value for name, value in state.items() if name != "tightness"})
        tightness = state.get("tightness", 1.0)
        self.tightness_of_tasks = tightness if isinstance(tightness, list) else (tightness,) * (self.num_tasks or 1)

    def scores_of_tasks(self, scores: TrainingScores | Sequence[TrainingScores]) -> Sequence[TrainingScores]:
        """Scores of each label; a sequence of one if there is one label."""
        return [scores] if isinstance(scores, TrainingScores) else scores

    # ---------------------------------------------------------------- training

    @eager
    def __call__(
        self,
        pos_scores: Tensor,
        neg_scores: Tensor,
        dual_neg_scores: Tensor | None = None,
        index: Tensor | None = None,
        *,
        previous: PreviousScores | None = None,
        masks: TaskMasks | None = None,
    ) -> Tensor:
        """Take one step on the algorithm's variables and return the loss for the model's weights.

        Args:
            pos_scores: float tensor ``(S,)``, scores of the sampled positives.
            neg_scores: float tensor ``(B~,)``, scores of the negatives.
            dual_neg_scores: float tensor ``(B,)``, scores of the second, independent negatives; only algorithms with
                :attr:`needs_dual_negatives` read it.
            index: integer tensor, array or list ``(S,)``, which positives these are, in ``0 .. num_positives - 1``.
                Each may come only once. That is not checked, since a check would wait for the device; if one comes
                twice, only one of its two updates is kept.
            previous: the same batch under the weights before the last update, for algorithms with
                :attr:`needs_previous`; ``None`` at the first step.
            masks: for K labels, which of their scores are present. Scores and ``index`` then have a leading dimension
                K, and ``index`` counts the positives of each label from 0. A label without a positive or without a
                negative is not in play: none of its variables changes. Uniformly drawn batches have all labels in play.

        Returns:
            Scalar tensor, differentiable with respect to ``pos_scores`` and ``neg_scores``.

        Raises:
            ArgumentError: if shapes do not fit together, if ``index`` holds no integers or, on the CPU, is out of
                range, if a class is missing from a batch that holds both by design, or if :meth:`setup` was not called.
            UnsupportedError: if ``previous`` is given to an algorithm without :attr:`needs_previous`.
        """
        self._require_setup()
        index = None if index is None else as_index(index, getattr(pos_scores, "device", None))
        second = dual_neg_scores if self.needs_dual_negatives else neg_scores
        if previous is not None and self.needs_previous is None:
            msg = f"{type(self).__name__} does not use the previous weights: leave out `previous`."
            raise UnsupportedError(msg)
        scores = self._checked(pos_scores, neg_scores, second, index, masks)
        if masks is not None:
            return self._joint_loss(*scores, masks)
        step: Any = self.step  # takes `previous` where `needs_previous` says so
        loss: Tensor = step(*scores) if previous is None else step(*scores, previous=previous)
        return loss

    def _checked(
        self, pos: Tensor, neg: Tensor, second: Tensor | None, index: Tensor | None, masks: TaskMasks | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The arguments of a step, whose shapes fit together."""
        if (masks is None) != (self.num_tasks is None):
            msg = (
                "Expected `masks` where `setup` was given a number of positives for each of several labels, and only "
                f"there, but got {'no masks' if masks is None else 'masks'} and a setup for "
                f"{self.num_tasks or 'one label'}."
            )
            raise ArgumentError(msg)
        leading = () if self.num_tasks is None else (self.num_tasks,)
        named: dict[str, Any] = {"pos_scores": pos, "neg_scores": neg, "dual_neg_scores": second, "index": index}
        for name, scores in named.items():
            if not isinstance(scores, Tensor) or scores.ndim != 1 + len(leading) or scores.shape[:-1] != leading:
                raise ArgumentError(self._shape_message(name, scores, leading))
        assert second is not None and index is not None  # noqa: S101, PT018  # just checked
        if index.shape != pos.shape:
            raise ArgumentError(self._shape_message("index", index, tuple(pos.shape)))
        if masks is not None:
            self._check_places(index, masks)
            return pos, neg, second, index
        check_range(index, self.num_positives or 0)
        if self.sampling != "uniform" and not (pos.numel() and neg.numel() and second.numel()):
            msg = (
                f"{type(self).__name__} needs positives and negatives in every batch, but got {pos.numel()} and "
                f"{min(neg.numel(), second.numel())}. Draw the classes apart, as PosNegDataModule does."
            )
            raise ArgumentError(msg)
        return pos, neg, second, index

    @staticmethod
    def _shape_message(name: str, value: object, leading: tuple[int, ...]) -> str:
        got = tuple(value.shape) if isinstance(value, Tensor) else value
        remedy = "Drop a trailing dimension with `.squeeze(-1)`."
        if name == "dual_neg_scores" and value is None:
            remedy = "Draw a second batch of negatives (`num_dual_neg`), or set `share_negatives=True`."
        elif name == "index":
            remedy = "Number the training positives from 0, and pass the numbers of those in `pos_scores`."
        shape = "".join(f"{size}, " for size in leading)
        return f"Expected `{name}` of shape ({shape}number of them), but got {got}. {remedy}"

    def _check_places(self, index: Tensor, masks: TaskMasks) -> None:
        """A position beyond its label would be one of the next; looks on the CPU only, where nobody has to wait."""
        if index.device.type == "cpu":
            wrong = masks.pos & ((index < 0) | (index >= torch.tensor(self.task_sizes).unsqueeze(-1)))
            if bool(wrong.any()):
                label, place = wrong.nonzero()[0].tolist()
                msg = (
                    "Expected `index` to number the positives of each label from 0, below "
                    f"{(self.task_sizes or ())[label]} for label {label}, but got {int(index[label, place])}."
                )
                raise ArgumentError(msg)

    def _joint_loss(self, pos: Tensor, neg: Tensor, second: Tensor, index: Tensor, masks: TaskMasks) -> Tensor:
        """One step of all labels; the loss is their weighted mean, in which those that are not in play count as 0."""
        apart = self.sampling != "uniform"
        if not self.needs_dual_negatives:
            masks = masks._replace(dual_neg=masks.neg)
        if apart:
            ready = masks.neg.any(-1, keepdim=True) & masks.with_dual_negatives.neg.any(-1, keepdim=True)
            masks = masks._replace(pos=masks.pos & ready)
        pos, neg = there(pos, masks.pos), there(neg, masks.neg)
        second = there(second, masks.dual_neg) if self.needs_dual_negatives else neg
        step: Any = self.step  # takes masks, as `takes_tasks` promises
        losses: Tensor = step(pos, neg, second, self.place(index, masks.pos), masks=masks)
        losses = in_play(losses, 0.0, masks) if apart else losses
        total: Tensor = (losses * self._per_task["weights"]).sum()
        return total

    @abstractmethod
    def step(self, pos_scores: Tensor, neg_scores: Tensor, dual_neg_scores: Tensor, index: Tensor) -> Tensor:
        """One step on checked arguments; see :meth:`__call__`.

        Methods with :attr:`needs_previous` take ``previous``, those with :attr:`takes_tasks` take ``masks`` as well.
        """

    def start(self, scores: TrainingScores | Sequence[TrainingScores] | None = None) -> None:
        """Called once before the first step, with training scores (of each label) if :meth:`needs_scores` says so."""

    def finish_stage(self) -> None:
        """End a stage: averages become the current values and the next anchors."""

    def restart(self, scores: TrainingScores | Sequence[TrainingScores] | None = None) -> None:
        """Begin the next stage, with scores as in :meth:`start`."""


class PairwiseAlgorithm(Algorithm):
    r"""A method whose settings are measured in the loss of its surrogate, or absolutely.

    The unit L is a running mean of the loss on the hardest :math:`\theta_1` of the negatives; see
    :func:`~lightning_tpauc.functional.staco.loss_unit_step`. Where ``margin`` and ``scale`` are ``None``, they are
    :attr:`score_slope` and 1 over it.
    """

    loss_unit: Tensor

    def __init__(
        self,
        min_tpr: float,
        max_fpr: float,
        surrogate: str | Surrogate,
        margin: float | None,
        scale: float | None,
        step_units: Literal["loss", "absolute"],
    ) -> None:
        self._given_surrogate = surrogate
        self.margin = None if margin is None else float(margin)
        self.scale = None if scale is None else float(scale)
        super().__init__(min_tpr, max_fpr)
        check_choice(step_units, "step_units", ("loss", "absolute"))
        self.step_units = step_units
        self.add_state("loss_unit", "scalar")

    @property
    def score_slope(self) -> float:
        """By how much a score grows when the model's output grows by one from 0: 1, or 0.25 behind a sigmoid.

        Margin and scale follow it where they are not given, so that the loss bends as much behind a sigmoid as on raw
        scores. A margin of 1 behind a sigmoid would bend nowhere, since no pair reaches it.
        """
        return self._score_slope

    @score_slope.setter
    def score_slope(self, slope: float) -> None:
        self._score_slope = slope
        self.surrogate = get_surrogate(
            self._given_surrogate,
            margin=slope if self.margin is None else self.margin,
            scale=1.0 / slope if self.scale is None else self.scale,
        )
        self._constant_loss = float(self.surrogate.value(torch.zeros((), dtype=torch.float64, device="cpu")))

    def diagnostics(self) -> dict[str, Tensor]:
        """The unit of the loss; 0 where nothing is measured in it."""
        return {"loss_unit": self.loss_unit.mean()}

    def update_units(
        self, pos_scores: Tensor, neg_scores: Tensor, *, bounded: bool = False, masks: TaskMasks | None = None
    ) -> tuple[Tensor | float, Tensor | float]:
        r"""Take the batch's loss into L, and return two units: of this step's step sizes, and of the weights' loss.

        They are L and :math:`\max(L, L_B)`, or 1 if step sizes are absolute. ``bounded`` ones are at least the batch's
        own loss, and at least that of a constant model. L of a label that is not in play stays, and its units are 1.
        """
        if self.step_units == "absolute":
            return 1.0, 1.0
        negatives = None if masks is None else masks.with_dual_negatives
        batch_loss = tail_mean_loss(pos_scores, neg_scores, self.thetas[1], surrogate=self.surrogate, masks=negatives)
        unit = in_play(loss_unit_step(self.loss_unit, batch_loss, self._constant_loss), self.loss_unit, masks)
        self.loss_unit.copy_(unit)
        least = self._constant_loss if bounded else 0.0
        of_loss = in_play(bounded_loss_unit(unit, batch_loss, least), 1.0, masks)
        return (of_loss if bounded else in_play(unit, 1.0, masks)), of_loss

    def per_unit(self, loss: Tensor, unit: Tensor | float) -> Tensor:
        """The loss for the weights over its unit, so that a learning rate suits any score and surrogate."""
        return loss if self.step_units == "absolute" else loss / unit
