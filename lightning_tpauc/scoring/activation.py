"""The sigmoid between the model's output and the algorithm: its slope, and whether there is one too many or too few."""

from __future__ import annotations

from typing import Any, Literal

from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.errors import TPAUCAdvice, TPAUCWarning

#: Nodes of autograd's graph that only rearrange or convert their input.
_REARRANGING = (
    "Alias",
    "AsStrided",
    "Clone",
    "Reshape",
    "Select",
    "Slice",
    "Split",
    "Squeeze",
    "ToCopy",
    "Unbind",
    "Unsqueeze",
    "UnsafeView",
    "View",
)
_SQUASHING = ("Sigmoid", "Hardsigmoid", "Softmax")


def is_squashed(scores: Tensor, model: Any = None) -> bool:
    """Whether scores with a gradient are the output of a sigmoid or softmax, according to autograd's graph.

    Example:
        >>> import torch
        >>> weight = torch.ones(3, requires_grad=True)
        >>> is_squashed(weight.sigmoid()[:, None].double()), is_squashed(weight * 2)
        (True, False)
    """
    node: Any = scores.grad_fn
    while node is not None and node.name().startswith(_REARRANGING):
        node = node.next_functions[0][0]
    if node is None:
        return False
    if node.name().startswith("Compiled") and isinstance(model, nn.Module):
        return isinstance(list(model.modules())[-1], (nn.Sigmoid, nn.Softmax))
    return bool(node.name().startswith(_SQUASHING))


def slope_of(score_activation: Literal["identity", "sigmoid"], algorithm: Algorithm) -> float:
    """By how much the algorithm's scores grow when the model's output grows by one from 0.

    Example:
        >>> from lightning_tpauc.algorithms import STACO
        >>> slope_of("identity", STACO()), slope_of("sigmoid", STACO())
        (1.0, 0.25)
    """
    return 0.25 if score_activation == "sigmoid" and not algorithm.takes_logits else 1.0


def warn_of_activation(
    algorithm: Algorithm, score_activation: Literal["identity", "sigmoid"], *, squashed: bool
) -> None:
    """Warn of a sigmoid too many or too few, which would change the training without an error."""
    name = type(algorithm).__name__
    if squashed and algorithm.takes_logits:
        rank_zero_warn(
            f"{name} takes raw scores, but the model ends in a sigmoid or softmax. Leave it out of the model, and "
            "set `score_activation='sigmoid'` for the methods that want one.",
            category=TPAUCWarning,
        )
    elif squashed and score_activation == "sigmoid":
        rank_zero_warn(
            "The model ends in a sigmoid or softmax, and `score_activation='sigmoid'` applies another: all scores "
            "lie between 0.27 and 0.74, with small gradients. Leave out one of the two.",
            category=TPAUCWarning,
        )
    elif not squashed and algorithm.takes_probabilities and score_activation == "identity":
        rank_zero_warn(
            f"{name} is made for scores in [0, 1], but `score_activation` is 'identity'. Set "
            "`score_activation='sigmoid'` (`--model.score_activation sigmoid`), unless the model's scores are "
            "probabilities already.",
            category=TPAUCWarning,
        )
    elif squashed and getattr(algorithm, "margin", 0.0) is None:
        rank_zero_warn(
            f"The model ends in a sigmoid or softmax, and {name}'s margin is made for raw scores: pairs of "
            "probabilities hardly ever reach it. Leave the sigmoid out of the model, or pass `margin=0.25`.",
            category=TPAUCAdvice,
        )
