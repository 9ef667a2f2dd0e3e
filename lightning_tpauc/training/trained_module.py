"""A LightningModule whose training remembers something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from typing_extensions import override

from lightning_tpauc.algorithms.base import TIGHTNESS_GRID
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.lightning_fixes.subclassing import duty, raise_taken, refuse_taken
from lightning_tpauc.optimization.optimized_module import OptimizedModule
from lightning_tpauc.training.checkpoint import own_random_state
from lightning_tpauc.training.rectangle import RectangleSchedule
from lightning_tpauc.training.scores import ScoreMemory
from lightning_tpauc.training.state import Phase, TrainingState
from lightning_tpauc.training.weights import BestWeights, IterateAverage, PreviousWeights

#: Attributes that are assigned in every step and never hold a tensor.
_PLAIN = frozenset({"_current_fx_name", "_activation_checked", "_awaited"})
#: What the module shows of its training state.
_SHOWN = frozenset(
    {
        "batches_seen",
        "best",
        "in_step",
        "iterates",
        "memory",
        "previous",
        "rectangle_schedule",
        "step_loss",
        "step_skipped",
        "threshold",
        "weights_step",
    }
)


class TrainedModule(OptimizedModule):
    """Adds the :class:`TrainingState` to a module, and shows parts of it as read-only attributes.

    Args:
        **kwargs: of :class:`~lightning_tpauc.optimization.optimized_module.OptimizedModule`.

    Raises:
        ArgumentError: if a class that is mixed in uses one of these names for an attribute of its own.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        refuse_taken(self, "training_state", *sorted(_SHOWN))
        #: What the training remembers; see :class:`TrainingState`.
        self.training_state = TrainingState()

    def __setattr__(self, name: str, value: Any) -> None:
        # nn.Module looks for parameters, modules and buffers in whatever is assigned, and Lightning assigns the name of
        # the hook it enters or leaves some thirty times a step.
        if name in _PLAIN:
            object.__setattr__(self, name, value)
        elif name in _SHOWN:
            if "training_state" not in vars(self):
                raise_taken(self, name)
            msg = f"`{name}` of {type(self).__name__} shows a part of its training state: it can't be set."
            raise ArgumentError(msg)
        else:
            super().__setattr__(name, value)

    @duty("before")
    def on_validation_model_zero_grad(self) -> None:
        """Note the random state before the validation's loader begins, which takes some of its numbers."""
        self.training_state.note_random_state(own_random_state())

    @override
    def objective_grid(self) -> Sequence[float]:
        """The whole grid if the rectangle shrinks; else its ends, which the advice looks at. Nothing outside of fit."""
        if self.trainer.state.fn != TrainerFn.FITTING or self.trainer.sanity_checking:
            return ()
        return TIGHTNESS_GRID if self.training_state.rectangle_schedule is not None else (0.0, 1.0)

    @property
    def batches_seen(self) -> int:
        """Number of training batches consumed so far; the position of the data module's sampler."""
        return self.training_state.batches_seen

    @property
    def weights_step(self) -> int:
        """How many training batches the weights to evaluate have seen, also of a model that was loaded."""
        return self.training_state.weights_step

    @property
    def in_step(self) -> bool:
        """Whether a training step is going on, of which the state may hold a part already."""
        return self.training_state.phase is Phase.IN_STEP

    @property
    def step_loss(self) -> Tensor:
        """Loss of the last step, whatever a subclass's ``training_step`` returns."""
        return self.training_state.step_loss

    @property
    def step_skipped(self) -> bool:
        """Whether a gradient scaler skipped the last step because of infinite gradients."""
        return self.training_state.step_skipped

    @property
    def threshold(self) -> float | dict[str, float | None] | None:
        """An example is called positive if its raw score is at least this threshold; ``None`` before one is chosen.

        A model of several labels has a dictionary with the threshold of each label by its name.

        It was chosen on validation scores by :class:`~lightning_tpauc.DecisionThreshold`, and comes with checkpoints.
        """
        return None if self.operating_point is None else self.operating_point.threshold

    @property
    def iterates(self) -> IterateAverage | None:
        """Anchor and running mean of the weights; ``None`` before training, and after other weights were loaded."""
        return self.training_state.average

    @property
    def memory(self) -> ScoreMemory | None:
        """The remembered training scores; ``None`` unless they are needed."""
        return self.training_state.memory

    @property
    def previous(self) -> PreviousWeights:
        """The weights before the last update; empty unless the algorithm needs them."""
        return self.training_state.previous

    @property
    def best(self) -> BestWeights | None:
        """The weights that validated best; ``None`` unless they are kept."""
        return self.training_state.best

    @property
    def rectangle_schedule(self) -> RectangleSchedule | None:
        """What shrinks the trained rectangle; ``None`` if it does not shrink."""
        return self.training_state.rectangle_schedule
