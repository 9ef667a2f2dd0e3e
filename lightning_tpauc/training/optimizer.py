"""The optimizer that a module trains with where the user gives none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import require_range

#: How much shorter than Adam's a step may be.
_MOST_DAMPING = 3.0


class DampedAdam(Optimizer):
    r"""Adam that moves a weight less if its gradients are small beside those of other weights of the same output.

    Adam divides each weight's mean gradient by the root of its own mean square :math:`\sqrt{v_{ij}}`. So the weights of
    inputs that say nothing move as fast as those of inputs that matter, and a few positives with many inputs are learnt
    by heart within a few steps. Here the divisor is

    .. math:: \min\bigl(\max_k \sqrt{v_{ik}},\ 3 \sqrt{v_{ij}}\bigr) + \epsilon

    where :math:`k` runs over the weights of output :math:`i`: over a row of a linear layer's weight, over a filter of a
    convolution. Within a factor of three the steps are proportional to the gradients, as those of SGD. No step is
    longer than Adam's, and none is shorter than a third of it, whatever the scales of the inputs. Biases and other
    vectors get Adam's steps. ``benchmarks/defaults.py`` compares both.

    Args:
        params: parameters, or groups of them with options of their own.
        lr: learning rate, at least 0; a number, or a tensor of shape ().
        betas: rates of decay of the mean gradient and of the mean square, both in [0, 1).
        eps: added to the divisor, at least 0.

    Raises:
        ArgumentError: if an argument is out of its range, or a gradient is sparse.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1, 3))
        >>> optimizer = DampedAdam([weight], lr=0.1)
        >>> weight.grad = torch.tensor([[1.0, 0.5, 0.01]])
        >>> optimizer.step()
        >>> weight.data
        tensor([[-0.1000, -0.0500, -0.0333]])
    """

    def __init__(
        self, params: Any, lr: float | Tensor = 0.01, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        if isinstance(lr, Tensor) and lr.ndim:
            msg = f"Expected `lr` to be a number or a tensor of shape (), but got one of shape {tuple(lr.shape)}."
            raise ArgumentError(msg)
        given: Any = betas  # whatever a caller passes
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            msg = f"Expected `betas` to be two numbers, such as (0.9, 0.999), but got {given!r}."
            raise ArgumentError(msg)
        first, second = (require_range("betas", beta, 0.0, 1.0, open_high=True) for beta in betas)
        rate = require_range("lr", float(lr) if isinstance(lr, Tensor) else lr, 0.0)
        rates = {"lr": lr if isinstance(lr, Tensor) else rate, "betas": (first, second)}
        super().__init__(params, {**rates, "eps": require_range("eps", eps, 0.0)})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move the weights that have a gradient.

        Args:
            closure: evaluates the loss and the gradients, and is called first.

        Returns:
            What the closure returns.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, weight.grad, **{name: group[name] for name in ("lr", "betas", "eps")})
        return loss

    def _move(
        self, weight: Tensor, gradient: Tensor, lr: float | Tensor, betas: tuple[float, float], eps: float
    ) -> None:
        if gradient.is_sparse:
            msg = "DampedAdam takes dense gradients: build the embedding with `sparse=False`."
            raise ArgumentError(msg)
        state = self.state[weight]
        if not state:  # named as Adam names them; the count stays on the host, so that no step waits for the device
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
        state["step"] += 1
        count, mean, square = float(state["step"]), state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(gradient, 1 - betas[0])
        square.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
        root = square.div(1 - betas[1] ** count).sqrt_()
        update = mean.div(damped(root).add_(eps)).mul_(lr / (1 - betas[0] ** count))
        weight.sub_(update)


def damped(root: Tensor) -> Tensor:
    """The divisors of a parameter's steps, from the roots of its mean squared gradients.

    Args:
        root: not negative; its first dimension counts outputs.

    Returns:
        New tensor of the same shape; the roots themselves if there are fewer than two dimensions.

    Example:
        >>> damped(torch.tensor([[3.0, 2.0, 0.5]]))
        tensor([[3.0000, 3.0000, 1.5000]])
    """
    if root.ndim < 2 or not root.numel():
        return root
    largest = root.amax(dim=tuple(range(1, root.ndim)), keepdim=True)
    return torch.minimum(root * _MOST_DAMPING, largest)
