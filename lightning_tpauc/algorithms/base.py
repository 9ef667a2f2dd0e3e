"""What every training method shares: declared state, one calling convention, stages.

An algorithm is a plain object, not an :class:`torch.nn.Module`: its state (dual weights, thresholds) belongs to
training and must be touched neither by precision plugins, which cast buffers to bfloat16, nor by
DistributedDataParallel, which overwrites them with rank 0's. State is declared once with :meth:`Algorithm.add_state`;
allocation, device moves, checkpoints and the roll-back of a step that a gradient scaler skipped follow from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError, CheckpointError
from lightning_tpauc.functional.checks import check_rectangle

__all__ = ("Algorithm", "TrainingScores")


class TrainingScores(NamedTuple):
    """Scores of the training set under one set of weights, for solving the dual variables.

    Attributes:
        pos_scores: float tensor of shape ``(n_pos,)``; entry i belongs to positive i.
        neg_scores: float tensor of shape ``(m,)``: all negatives, or a sample of them.
    """

    pos_scores: Tensor
    neg_scores: Tensor


class StateSpec(NamedTuple):
    """Declaration of one state tensor."""

    kind: Literal["positive", "scalar"]
    fill: float
    dtype: torch.dtype | None


class Algorithm(ABC):
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

    #: How training batches are drawn: positives and negatives apart, or uniformly from the whole training set.
    sampling: ClassVar[Literal["pos_neg", "uniform"]] = "pos_neg"

    def __init__(self, min_tpr: float = 0.5, max_fpr: float = 0.5) -> None:
        check_rectangle(min_tpr, max_fpr)
        self.min_tpr = min_tpr
        self.max_fpr = max_fpr
        #: Current learning rate over the initial one; multiplies the algorithm's own step sizes.
        self.step_scale = 1.0
        self.num_positives: int | None = None
        self._specs: dict[str, StateSpec] = {}

    @property
    def theta0(self) -> float:
        r""":math:`\theta_0 = 1 -` ``min_tpr``."""
        return 1.0 - self.min_tpr

    @property
    def theta1(self) -> float:
        r""":math:`\theta_1 =` ``max_fpr``."""
        return self.max_fpr

    # ---------------------------------------------------------------- capabilities

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

    def needs_scores(self, event: Literal["start", "restart"]) -> bool:  # noqa: ARG002
        """Whether :meth:`start` or :meth:`restart` solves the dual variables from the training scores."""
        return False

    # ---------------------------------------------------------------- declared state

    def add_state(
        self, name: str, kind: Literal["positive", "scalar"], fill: float = 0.0, dtype: torch.dtype | None = None
    ) -> None:
        """Declare a state tensor that :meth:`setup` allocates as an attribute.

        Args:
            name: attribute name and key in :meth:`state_dict`.
            kind: ``"positive"`` for one entry per positive example, ``"scalar"`` for a tensor of shape ``()``.
            fill: initial value.
            dtype: fixed dtype, for counters; ``None`` takes the dtype given to :meth:`setup`.
        """
        self._specs[name] = StateSpec(kind, fill, dtype)

    def setup(
        self,
        num_positives: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Allocate the declared state.

        Args:
            num_positives: number of positive training examples; ``index`` runs over ``0 .. num_positives - 1``.
            device: where the state lives; the default device if ``None``.
            dtype: ``torch.float32`` or ``torch.float64``.

        Raises:
            ArgumentError: if ``num_positives`` is below 1 or ``dtype`` is a half-precision type.
        """
        if num_positives < 1:
            msg = f"Expected `num_positives` to be at least 1, but got {num_positives}: training needs a positive."
            raise ArgumentError(msg)
        if dtype not in (torch.float32, torch.float64):
            msg = (
                f"Expected `dtype` to be torch.float32 or torch.float64, but got {dtype}: "
                "a running mean in half precision stops moving."
            )
            raise ArgumentError(msg)
        self.num_positives = int(num_positives)
        for name, spec in self._specs.items():
            shape = (self.num_positives,) if spec.kind == "positive" else ()
            setattr(self, name, torch.full(shape, spec.fill, device=device, dtype=spec.dtype or dtype))

    def to(self, device: torch.device | str) -> Algorithm:
        """Move the state; returns itself."""
        for name in self._specs:
            if hasattr(self, name):
                setattr(self, name, getattr(self, name).to(device))
        return self

    def state_dict(self) -> dict[str, Any]:
        """All that the algorithm remembers, as tensors and primitives (loadable with ``weights_only=True``)."""
        self._require_setup()
        return {"num_positives": self.num_positives, **{name: getattr(self, name) for name in self._specs}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, in place.

        Raises:
            CheckpointError: if the state belongs to another number of positives or another algorithm.
        """
        self._require_setup()
        if state.get("num_positives") != self.num_positives:
            msg = (
                f"The checkpoint was written for {state.get('num_positives')} positive examples, but the training set "
                f"has {self.num_positives}. Resume on the same data, or start a new run from the weights alone."
            )
            raise CheckpointError(msg)
        names = set(state) - {"num_positives"}
        if names != set(self._specs):
            msg = (
                f"The checkpoint holds the state {sorted(names)}, but {type(self).__name__} remembers "
                f"{sorted(self._specs)}: it was written by another algorithm."
            )
            raise CheckpointError(msg)
        for name in self._specs:
            getattr(self, name).copy_(state[name])

    def snapshot(self, index: Tensor) -> dict[str, Tensor]:
        """Copy of what a step on ``index`` may change; see :meth:`rollback`."""
        return {
            name: getattr(self, name)[index] if spec.kind == "positive" else getattr(self, name).clone()
            for name, spec in self._specs.items()
        }

    def rollback(self, index: Tensor, snapshot: dict[str, Tensor]) -> None:
        """Undo a step on ``index``, as if it had not been taken."""
        for name, spec in self._specs.items():
            state: Tensor = getattr(self, name)
            if spec.kind == "positive":
                state.index_copy_(0, index, snapshot[name])
            else:
                state.copy_(snapshot[name])

    # ---------------------------------------------------------------- training

    def __call__(
        self, pos_scores: Tensor, neg_scores: Tensor, dual_neg_scores: Tensor | None = None, index: Tensor | None = None
    ) -> Tensor:
        """Take one step on the algorithm's variables and return the loss for the model's weights.

        Args:
            pos_scores: float tensor ``(S,)``, scores of the sampled positives.
            neg_scores: float tensor ``(B~,)``, scores of the negatives.
            dual_neg_scores: float tensor ``(B,)``, scores of the second, independent negatives; only algorithms with
                :attr:`needs_dual_negatives` read it.
            index: int64 tensor ``(S,)``, which positives these are, without repetition, in ``0 .. num_positives - 1``.

        Returns:
            Scalar tensor, differentiable with respect to ``pos_scores`` and ``neg_scores``.

        Raises:
            ArgumentError: if shapes do not fit together, or if :meth:`setup` was not called.
        """
        self._require_setup()
        if index is None or index.shape != pos_scores.shape or pos_scores.ndim != 1:
            msg = (
                "Expected `index` to name each of the `pos_scores`, both of shape (S,), but got "
                f"{None if index is None else tuple(index.shape)} and {tuple(pos_scores.shape)}."
            )
            raise ArgumentError(msg)
        if neg_scores.ndim != 1:
            msg = f"Expected `neg_scores` to have shape (B,), but got {tuple(neg_scores.shape)}."
            raise ArgumentError(msg)
        if not self.needs_dual_negatives:
            dual_neg_scores = neg_scores
        elif dual_neg_scores is None or dual_neg_scores.ndim != 1 or dual_neg_scores.numel() == 0:
            msg = (
                f"{type(self).__name__} needs a second batch of negatives in `dual_neg_scores`, but got "
                f"{None if dual_neg_scores is None else tuple(dual_neg_scores.shape)}. "
                "Draw one (`num_dual_neg`), or set `share_negatives=True`."
            )
            raise ArgumentError(msg)
        return self.step(pos_scores, neg_scores, dual_neg_scores, index)

    @abstractmethod
    def step(self, pos_scores: Tensor, neg_scores: Tensor, dual_neg_scores: Tensor, index: Tensor) -> Tensor:
        """One step on checked arguments; see :meth:`__call__`."""

    def start(self, scores: TrainingScores | None = None) -> None:
        """Called once before the first step, with scores if :meth:`needs_scores` says so for ``"start"``."""

    def finish_stage(self) -> None:
        """End a stage: averages become the current values and the next anchors."""

    def restart(self, scores: TrainingScores | None = None) -> None:
        """Begin the next stage, with scores if :meth:`needs_scores` says so for ``"restart"``."""

    def _require_setup(self) -> None:
        if self.num_positives is None:
            msg = f"{type(self).__name__} has no state yet: call `setup(num_positives)` first."
            raise ArgumentError(msg)
