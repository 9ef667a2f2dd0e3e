"""The weights before the last update, for methods that score every batch under these as well.

SONX corrects its running estimates by the change of the scores. PAUCI's gradient estimate is a recursion over the
gradients at both weights. The additional forward pass draws the same dropout masks as the step's own one and does not
change running statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lightning_tpauc.algorithms.base import Algorithm
from lightning_tpauc.algorithms.pauci import RecursiveAlgorithm
from lightning_tpauc.distributed.fsdp import assign, reshard, whole
from lightning_tpauc.functional.averaging import master_dtype

__all__ = ("PreviousWeights",)


class PreviousWeights:
    r"""Keeps :math:`w_{t-1}` and, for recursive methods, the gradient estimate :math:`v_{t-1}`.

    A step scores its batch in :meth:`swapped_in` before its own forward pass. It calls :meth:`estimate` on the unscaled
    gradients, :meth:`remember` before the optimizer's step, and then :meth:`commit`, or :meth:`discard` if a gradient
    scaler skipped the step. It costs one copy of the trained weights, two for recursive methods, and as many more in a
    step.

    Args:
        parameters: the parameters that the optimizer updates. If there are none, because the algorithm does not need
            the previous weights, no method has an effect.
        recursive: whether the gradient estimate is needed.
    """

    def __init__(self, parameters: Iterable[Tensor] = (), recursive: bool = False) -> None:
        self.parameters = list(parameters)
        self.recursive = recursive
        self.weights: list[Tensor] = []
        self.estimates = (
            [torch.zeros_like(p, dtype=master_dtype(p.dtype)) for p in self.parameters] if recursive else []
        )
        self._next_weights: list[Tensor] = []
        self._next_estimates: list[Tensor] = []

    def estimate(self, algorithm: Algorithm) -> None:
        """Replace the accumulated gradients by the direction of a recursive method's step."""
        if not isinstance(algorithm, RecursiveAlgorithm):
            return
        trained = [k for k, p in enumerate(self.parameters) if p.grad is not None]
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        new = algorithm.estimate_(gradients, [self.estimates[k] for k in trained])
        self._next_estimates = list(self.estimates)
        for k, estimate in zip(trained, new, strict=True):
            self._next_estimates[k] = estimate

    def remember(self) -> None:
        """Copy the current weights, before the optimizer changes them."""
        self._next_weights = [p.detach().clone() for p in self.parameters]

    def commit(self) -> None:
        """After a step that was taken, make the remembered weights the previous ones."""
        self.weights = self._next_weights
        if self.recursive:
            self.estimates = self._next_estimates
        self.discard()

    def discard(self) -> None:
        """After a step that was skipped, keep the previous weights."""
        self._next_weights, self._next_estimates = [], []

    def state_dict(self) -> dict[str, Any]:
        """Weights and estimates as whole tensors (a collective for sharded ones)."""
        return {"weights": [whole(t) for t in self.weights], "estimates": [whole(t) for t in self.estimates]}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned, if both runs need the previous weights."""
        if self.parameters and state["weights"]:
            self.weights = [p.detach().clone() for p in self.parameters]
            assign(self.weights, state["weights"])
            assign(self.estimates, state["estimates"])

    @contextmanager
    def swapped_in(self, model: nn.Module) -> Iterator[None]:
        """The model holds the previous weights inside; a forward pass in there leaves no trace.

        Running statistics and the random state are put back, so that the step's own forward pass draws the same dropout
        masks. Gradients are recorded only for recursive methods, which need them.

        Args:
            model: the model that the parameters belong to.
        """
        device = self.parameters[0].device
        current = [p.detach().clone() for p in self.parameters]
        buffers = [(b, b.clone()) for b in model.buffers()]
        random = torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        assign(self.parameters, self.weights)
        reshard(model)
        try:
            with torch.set_grad_enabled(self.recursive):
                yield
        finally:
            assign(self.parameters, current)
            assign([b for b, _ in buffers], [b for _, b in buffers])
            reshard(model)
            torch.set_rng_state(random[0])
            if random[1] is not None:
                torch.cuda.set_rng_state(random[1], device)
