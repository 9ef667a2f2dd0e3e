r"""The weights of a stage: anchor :math:`w_0`, running mean :math:`\bar w`, and swapping the mean in for evaluation.

The parameters come from the optimizer's groups and not from the module, because under FSDP2 only the former are always
the sharded tensors. Every operation is elementwise, so that the same code works on plain tensors and on DTensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from lightning_tpauc.distributed.fsdp import assign, whole
from lightning_tpauc.functional.averaging import master_dtype, running_mean_

__all__ = ("IterateAverage",)


class IterateAverage:
    r"""Anchor and running mean of the trained weights over one stage.

    Args:
        parameters: the parameters that the optimizer updates.
        buffers: floating buffers that are averaged like weights (running statistics of batch normalisation).
        anchored: whether a proximal term needs the anchor.
        averaged: whether the mean of the iterates is needed.
        is_solution: whether the mean is evaluated and saved as the model's weights; if not, it only becomes the next
            anchor.
        decay: how fast the mean forgets; see :func:`~lightning_tpauc.functional.averaging.running_mean_`.

    Attributes:
        count: how many iterates of this stage the mean holds.
        stage: number of finished stages.
    """

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
        self._any_sharded = any(isinstance(p, DTensor) for p in (*self.parameters, *self.averaged))
        self.count = 0
        self.stage = 0
        self._iterate: list[Tensor] | None = None

    @property
    def swapped(self) -> bool:
        """Whether the model currently holds the mean instead of the last iterate."""
        return self._iterate is not None

    @torch.no_grad()
    def update(self) -> None:
        r"""Add the current weights to the mean, after a step."""
        self.count += 1
        for means, values in self._by_layout(self.mean, self.averaged):
            running_mean_(means, values, self.count, self.decay)

    @torch.no_grad()
    def add_proximal_gradient(self, coefficient: float) -> None:
        r"""Add :math:`c\,(w - w_0)` to the gradients, as (eqn:ww) has it."""
        pairs = [(p, w0) for p, w0 in zip(self.parameters, self.anchor, strict=True) if p.grad is not None]
        for parameters, anchors in self._by_layout([p for p, _ in pairs], [w0 for _, w0 in pairs]):
            gradients = [p.grad for p in parameters if p.grad is not None]
            if not gradients:
                continue
            masters = [p.to(w0.dtype) for p, w0 in zip(parameters, anchors, strict=True)]
            displacement = torch._foreach_sub(masters, anchors)
            scaled = [d.to(g.dtype) for d, g in zip(displacement, gradients, strict=True)]
            torch._foreach_add_(gradients, scaled, alpha=coefficient)

    def _by_layout(self, first: list[Tensor], second: list[Tensor]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Pairs of sharded, then of ordinary tensors: torch's operations on lists refuse to mix them."""
        if not self._any_sharded:
            yield first, second
            return
        for sharded in (True, False):
            pairs = [pair for pair in zip(first, second, strict=True) if isinstance(pair[0], DTensor) == sharded]
            yield [a for a, _ in pairs], [b for _, b in pairs]

    @torch.no_grad()
    def finish_stage(self, adopt: bool = True) -> None:
        r"""End a stage: the mean becomes the next anchor and, with ``adopt``, the current weights.

        Args:
            adopt: STACO2 continues from the mean; AUCM continues from the last iterate and only anchors at the mean.
        """
        if self.count and self.mean:
            if adopt:
                assign(self.averaged, self.mean)
            assign(self.anchor, self.mean[: len(self.anchor)])
        else:
            assign(self.anchor, [p.detach() for p in self.parameters][: len(self.anchor)])
        self.count = 0
        self.stage += 1

    @torch.no_grad()
    def swap_in(self) -> bool:
        """Put the mean into the model for evaluation, unless the mean is empty or already in the model.

        Returns:
            Whether this call changed the model.
        """
        if self.evaluation_weights() is None or self._iterate is not None:
            return False
        self._iterate = [p.detach().clone() for p in self.averaged]
        assign(self.averaged, self.mean)
        return True

    @torch.no_grad()
    def swap_out(self) -> bool:
        """Put the last iterate back.

        Returns:
            Whether there was something to put back.
        """
        if self._iterate is None:
            return False
        assign(self.averaged, self._iterate)
        self._iterate = None
        return True

    def evaluation_weights(self) -> list[Tensor] | None:
        """The weights to evaluate and to save, in the order of ``averaged``; ``None`` if these are the current ones."""
        return self.mean if self.count and self.mean and self.is_solution else None

    def state_dict(self) -> dict[str, Any]:
        """Counters, anchor, mean and last iterate as whole tensors (a collective for sharded ones)."""
        iterate = self._iterate if self._iterate is not None else [p.detach() for p in self.averaged]
        return {
            "count": self.count,
            "stage": self.stage,
            "anchor": [whole(t) for t in self.anchor],
            "mean": [whole(t) for t in self.mean],
            "iterate": [whole(t) for t in iterate] if self.count else [],
        }

    def fits(self, state: dict[str, Any]) -> bool:
        """Whether :meth:`state_dict` came from a run that kept tensors of the same shapes."""
        pairs = [(self.anchor, state["anchor"]), (self.mean, state["mean"])]
        return all([t.shape for t in own] == [t.shape for t in other] for own, other in pairs)

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore everything; the model then holds the last iterate."""
        self.count, self.stage, self._iterate = int(state["count"]), int(state["stage"]), None
        assign(self.anchor, state["anchor"])
        assign(self.mean, state["mean"])
        if state["iterate"]:
            assign(self.averaged, state["iterate"])


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to(master_dtype(tensor.dtype), copy=True)
