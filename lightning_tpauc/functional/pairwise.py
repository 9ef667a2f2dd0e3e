r"""Sums over all positive-negative pairs, in O((S + B) log(S + B)) where the surrogate allows it.

For scores :math:`h`, positives i = 1 .. S, negatives j = 1 .. B and :math:`\ell_{ij} = \ell(h_j - h_i)`, every method
of this package needs :math:`\frac1B \sum_j (\ell_{ij} - s_i)_+`, the share of pairs with :math:`\ell_{ij} > s_i`, and
the gradients of the weighted sum over i.

*Dense* evaluation forms the S x B matrix, in blocks of bounded size. *Sorted* evaluation uses that l is a polynomial of
the scores wherever it is not zero: with the negatives in descending order, the active ones of positive i come first,
and prefix sums of :math:`1, h_j, h_j^2` give all sums over them. Both return the same numbers; pairs whose loss equals
the threshold up to rounding may be counted as active by one and not by the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional.checks import check_per_positive, check_scores, common_dtype
from lightning_tpauc.functional.dense_sums import dense_sums, dense_sums_of_two, in_one_block
from lightning_tpauc.functional.sorted_sums import PairSums, sorted_sums
from lightning_tpauc.functional.surrogates import Surrogate, get_surrogate

__all__ = ("PairwiseTerms", "pairwise_terms", "weighted_excess")

#: Weights, or what makes them of the mean excess losses.
Weights = Tensor | Callable[[Tensor], Tensor]

_METHODS = ("auto", "dense", "sorted")
# Pairs above which sorting wins. Median ms on one core, squared hinge with gradients, dense / sorted:
# 32 x 32 0.09 / 0.24, 128 x 128 0.15 / 0.25, 128 x 256 0.20 / 0.27, 256 x 256 0.31 / 0.28, 1024 x 8192 80 / 1.9.
# On the H200 0.35 / 1.0 up to 2048 x 4096, 1.2 / 1.1 at 4096 x 8192, so there the block decides.
_CROSSOVER = {"cpu": 2**15, "other": 2**22}


class PairwiseTerms(NamedTuple):
    r"""What :func:`pairwise_terms` returns, without a graph.

    Attributes:
        excess: ``(S,)``, :math:`\frac1B \sum_j (\ell_{ij} - s_i)_+`, at least 0.
        active: ``(S,)``, the share of negatives with :math:`\ell_{ij} > s_i`, in [0, 1].
        pos_grad: ``(S,)``, :math:`\partial V / \partial h_i` of :math:`V = \sum_i y_i\,\mathrm{excess}_i`; ``None``
            without ``gradients``.
        neg_grad: ``(B,)``, :math:`\partial V / \partial h_j`; ``None`` without ``gradients``.
    """

    excess: Tensor
    active: Tensor
    pos_grad: Tensor | None
    neg_grad: Tensor | None


@torch.no_grad()
def pairwise_terms(
    pos_scores: Tensor,
    neg_scores: Tensor,
    thresholds: Tensor,
    weights: Tensor | None = None,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float = 0.5,
    scale: float = 1.0,
    method: str = "auto",
    gradients: bool = True,
) -> PairwiseTerms:
    r"""Mean excess loss and share of active pairs of every positive, and the gradients of their weighted sum.

    .. math::
        \mathrm{excess}_i = \frac1B \sum_{j=1}^B (\ell(h_j - h_i) - s_i)_+, \qquad
        \mathrm{active}_i = \frac1B |\{j : \ell(h_j - h_i) > s_i\}|

    Args:
        pos_scores: float tensor ``(S,)``, scores :math:`h_i` of positives; S may be 0.
        neg_scores: float tensor ``(B,)``, scores :math:`h_j` of negatives, B at least 1.
        thresholds: float tensor ``(S,)``, :math:`s_i`, any real numbers; below 0 every pair is active.
        weights: float tensor ``(S,)``, :math:`y_i`; ones if ``None``.
        surrogate: name or :class:`~lightning_tpauc.functional.Surrogate`.
        margin: m of the hinge and square surrogates.
        scale: factor inside the logistic surrogate.
        method: ``"dense"``, ``"sorted"`` or ``"auto"``, which decides by S and B alone.
        gradients: whether to compute ``pos_grad`` and ``neg_grad``.

    Returns:
        :class:`PairwiseTerms` in the widest dtype of the inputs, at least float32.

    Raises:
        ArgumentError: if shapes or dtypes don't fit, B is 0, the method is unknown, or sorting was asked for a
            surrogate that can't be sorted.

    Example:
        >>> pos, neg = torch.tensor([0.0, 1.0]), torch.tensor([0.5, -2.0])
        >>> terms = pairwise_terms(pos, neg, torch.zeros(2), margin=0.5)
        >>> terms.excess, terms.active
        (tensor([0.5000, 0.0000]), tensor([0.5000, 0.0000]))
        >>> terms.pos_grad, terms.neg_grad
        (tensor([-1., -0.]), tensor([1., 0.]))
    """
    loss = get_surrogate(surrogate, margin, scale)
    pos, neg, s, y = _prepare(pos_scores, neg_scores, thresholds, weights)
    return _evaluate(pos, neg, s, y, loss, method, gradients)[0]


def weighted_excess(
    pos_scores: Tensor,
    neg_scores: Tensor,
    thresholds: Tensor,
    weights: Weights | None = None,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float = 0.5,
    scale: float = 1.0,
    method: str = "auto",
    dual_neg_scores: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""The weighted sum of mean excess losses, differentiable with respect to all scores.

    .. math:: V = \sum_{i=1}^S y_i \frac1B \sum_{j=1}^B (\ell(h_j - h_i) - s_i)_+

    The gradients are computed with the value, so the graph holds S + B numbers instead of the S x B pairs.
    ``thresholds`` and ``weights`` are constants of the step and get no gradient.

    Args:
        pos_scores: as in :func:`pairwise_terms`.
        neg_scores: as in :func:`pairwise_terms`.
        thresholds: as in :func:`pairwise_terms`.
        weights: as in :func:`pairwise_terms`, or a function that makes them of the mean excess losses ``(S,)``; these
            then need not be computed before, and small batches cost as many operations as without it.
        surrogate: as in :func:`pairwise_terms`.
        margin: as in :func:`pairwise_terms`.
        scale: as in :func:`pairwise_terms`.
        method: as in :func:`pairwise_terms`.
        dual_neg_scores: float tensor ``(B',)``, other negatives whose mean excess losses a ``weights`` function gets;
            constants of the step. Those of ``neg_scores`` if ``None``.

    Returns:
        V, of shape ``()``, and the share of active pairs ``(S,)``, which carries no gradient.

    Raises:
        ArgumentError: as in :func:`pairwise_terms`.
        UnsupportedError: in a backward pass with ``create_graph=True``.

    Example:
        >>> pos = torch.tensor([0.0, 1.0], requires_grad=True)
        >>> value, active = weighted_excess(pos, torch.tensor([0.5, -2.0]), torch.zeros(2), torch.tensor([0.5, 1.0]))
        >>> value.backward()
        >>> value.item(), pos.grad
        (0.25, tensor([-0.5000, -0.0000]))
    """
    loss = get_surrogate(surrogate, margin, scale)
    known = weights if weights is None or isinstance(weights, Tensor) else thresholds
    dual_neg = dual_neg_scores
    if dual_neg is not None:
        check_scores(dual_neg, "dual_neg_scores")
        if weights is known:
            msg = "Expected `weights` to be a function of the losses on `dual_neg_scores`, but got numbers or None."
            raise ArgumentError(msg)
        neg_scores = neg_scores.to(torch.promote_types(neg_scores.dtype, dual_neg.dtype))
    pos, neg, s, y = _prepare(pos_scores, neg_scores, thresholds, known)
    rule = y if weights is known or weights is None else weights
    dual_neg = None if dual_neg is None else dual_neg.detach().to(neg.dtype)
    value, active = _WeightedExcess.apply(pos, neg, s, rule, loss, method, dual_neg)
    return value, active


class _WeightedExcess(torch.autograd.Function):
    """Value and active shares; backward scales the gradients that forward already has."""

    @staticmethod
    def forward(
        ctx: Any,
        pos: Tensor,
        neg: Tensor,
        s: Tensor,
        weights: Weights,
        loss: Surrogate,
        method: str,
        dual_neg: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        gradients = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        (excess, active, pos_grad, neg_grad), y = _evaluate(pos, neg, s, weights, loss, method, gradients, dual_neg)
        if gradients:
            ctx.save_for_backward(pos_grad, neg_grad)
        ctx.mark_non_differentiable(active)
        return (excess * y).sum(), active

    @staticmethod
    def backward(ctx: Any, grad_value: Tensor, _grad_active: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            # The saved gradients carry no graph: second derivatives would silently miss this term.
            msg = "Pairwise losses have no second derivatives here. Call backward without `create_graph=True`."
            raise UnsupportedError(msg)
        pos_grad, neg_grad = ctx.saved_tensors
        return grad_value * pos_grad, grad_value * neg_grad, None, None, None, None, None


def _prepare(pos: Tensor, neg: Tensor, s: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check_scores(pos, "pos_scores", allow_empty=True)
    check_scores(neg, "neg_scores")
    check_per_positive(s, "thresholds", pos)
    if y is None:
        y = torch.ones_like(s)
    check_per_positive(y, "weights", pos)
    if pos.dtype == neg.dtype == s.dtype == y.dtype == torch.float32:
        return pos, neg, s, y  # the usual case, in every step
    dtype = common_dtype(pos, neg, s, y)
    return pos.to(dtype), neg.to(dtype), s.to(dtype), y.to(dtype)


def _evaluate(
    pos: Tensor,
    neg: Tensor,
    s: Tensor,
    y: Weights,
    loss: Surrogate,
    method: str,
    gradients: bool,
    dual_neg: Tensor | None = None,
) -> tuple[PairwiseTerms, Tensor]:
    """The terms, and the weights where these follow from the mean excess."""
    chosen = _choose(pos, neg, loss, method)
    num_neg = neg.shape[0]
    if isinstance(y, Tensor) or (dual_neg is None and (chosen == "sorted" or in_one_block(pos, num_neg))):
        sums = _sums(pos, neg, s, y, loss, chosen, gradients)
    elif dual_neg is not None and chosen == "dense" and in_one_block(pos, num_neg + dual_neg.shape[0]):
        sums, dual_excess = dense_sums_of_two(pos, neg, dual_neg, s, loss, gradients)
        y = _weights_of(y, dual_excess / dual_neg.shape[0])
    else:  # other negatives, or blocks that are not kept, take a round of their own
        others, any_weights = neg if dual_neg is None else dual_neg, s  # without gradients nobody reads them
        first = _evaluate(pos, others, s, any_weights, loss, method, gradients=False)[0]
        y = _weights_of(y, first.excess)
        sums = _sums(pos, neg, s, y, loss, chosen, gradients)
    excess, active = sums.excess / num_neg, sums.active / num_neg
    y = y if isinstance(y, Tensor) else _weights_of(y, excess)
    if not gradients:
        return PairwiseTerms(excess, active, None, None), y
    return PairwiseTerms(excess, active, sums.slope * y / -num_neg, sums.neg_slope(y) / num_neg), y


def _weights_of(rule: Callable[[Tensor], Tensor], excess: Tensor) -> Tensor:
    y = rule(excess)
    check_per_positive(y, "weights", excess)
    return y.to(excess.dtype)


def _choose(pos: Tensor, neg: Tensor, loss: Surrogate, method: str) -> str:
    if method not in _METHODS:
        msg = f"Expected `method` to be one of {', '.join(_METHODS)}, but got {method!r}."
        raise ArgumentError(msg)
    if method == "sorted" and loss.power is None:
        msg = f'Expected a surrogate that can be sorted, but got {loss.name!r}. Use method="dense" or "auto".'
        raise ArgumentError(msg)
    if method != "auto":
        return method
    # Apple's GPUs have no float64, which the prefix sums need.
    small = pos.shape[0] * neg.shape[0] <= _CROSSOVER["cpu" if neg.device.type == "cpu" else "other"]
    return "dense" if loss.power is None or small or neg.device.type == "mps" else "sorted"


def _sums(pos: Tensor, neg: Tensor, s: Tensor, y: Weights, loss: Surrogate, method: str, gradients: bool) -> PairSums:
    if method == "sorted":
        return sorted_sums(pos, neg, s, loss)
    return dense_sums(pos, neg, s, y, loss, gradients)
