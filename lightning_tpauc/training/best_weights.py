"""The weights with the best validation, which training leaves in the model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lightning_tpauc.distributed.fsdp import assign, whole
from lightning_tpauc.scoring.operating_point import OperatingPoint, OperatingPoints, restored_point

__all__ = ("BestWeights",)


class BestWeights:
    """A copy of the weights with the best validation so far.

    After some passes a model has memorised a small number of positives. Validation then gets worse while the training's
    objective still improves. If two validations have the same ``val/tpauc``, such as 0.0 before the ROC curve has
    reached the rectangle, the larger ``val/auroc`` decides.

    Args:
        tensors: what is copied: the parameters that the optimizer updates, and running statistics.

    Attributes:
        value: ``(tpauc, auroc)`` of the copy; ``-inf`` before the first validation.
        step: number of training batches that had been seen at that validation.
        operating_point: the threshold that this validation gave, if any.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.tensors = list(tensors)
        self.weights: list[Tensor] = []
        self.value = (-math.inf, -math.inf)
        self.step = 0
        self.operating_point: OperatingPoint | OperatingPoints | None = None
        self._last: list[Tensor] | None = None

    @torch.no_grad()
    def offer(
        self, tpauc: float, auroc: float, step: int, operating_point: OperatingPoint | OperatingPoints | None = None
    ) -> None:
        """Copy the model's weights if their validation is better than all before; nan is never better."""
        if math.isnan(tpauc) or not (tpauc, auroc) > self.value:
            return
        self.value, self.step, self.operating_point = (tpauc, auroc), step, operating_point
        if self.weights:
            assign(self.weights, [t.detach() for t in self.tensors])
        else:
            self.weights = [t.detach().clone() for t in self.tensors]

    @torch.no_grad()
    def swap_in(self) -> bool:
        """Put the best weights into the model, if there are any; returns whether this call changed the model."""
        if not self.weights or self._last is not None:
            return False
        self._last = [t.detach().clone() for t in self.tensors]
        assign(self.tensors, self.weights)
        return True

    @torch.no_grad()
    def swap_out(self) -> None:
        """Put back what the model held before :meth:`swap_in`."""
        if self._last is not None:
            assign(self.tensors, self._last)
            self._last = None

    def note(self) -> dict[str, Any]:
        """Value, step and operating point: what is known of the best weights."""
        point = None if self.operating_point is None else self.operating_point.state_dict()
        return {"value": list(self.value), "step": self.step, "operating_point": point}

    def state_dict(self) -> dict[str, Any]:
        """The :meth:`note` and whole tensors (a collective for sharded ones)."""
        return {
            **self.note(),
            "weights": [whole(t) for t in self.weights],
            "last": [whole(t) for t in self._last or ()],
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; the model then holds what training goes on from."""
        tpauc, auroc = (float(v) for v in state["value"])
        self.value, self.step, self._last = (tpauc, auroc), int(state["step"]), None
        point = state.get("operating_point")  # earlier releases had none
        self.operating_point = None if point is None else restored_point(point)
        if state["weights"]:
            self.weights = [t.detach().clone() for t in self.tensors]
            assign(self.weights, state["weights"])
        if state["last"]:
            assign(self.tensors, state["last"])
