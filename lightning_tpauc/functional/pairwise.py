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

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional.checks import check_per_positive, check_scores, common_dtype
from lightning_tpauc.functional.pair_sums import (
    BlockSums,
    DenseSums,
    SortedSums,
    dense_excess,
    dense_sums,
    dense_sums_of_two,
    in_one_block,
    sorted_sums,
)
from lightning_tpauc.functional.surrogates import Surrogate, get_surrogate
from lightning_tpauc.functional.tasks import TaskMasks, column, number

#: Sums of the excess and of active pairs, and ``grad_sums(weights)``.
PairSums = DenseSums | BlockSums | SortedSums

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
    masks: TaskMasks | None = None,
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
        margin: m of the hinge, square and ramp surrogates.
        scale: factor inside the logistic surrogate.
        method: ``"dense"``, ``"sorted"`` or ``"auto"``, which decides by S and B alone.
        gradients: whether to compute ``pos_grad`` and ``neg_grad``.
        masks: which scores of K tasks are there; all shapes above then have a leading K.

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
    pos, neg, s, y = _prepare(pos_scores, neg_scores, thresholds, weights, masks)
    neg_mask = None if masks is None else masks.neg
    sums, num_neg = _sums(pos, neg, s, loss, method, neg_mask), column(number(neg, neg_mask))
    pos_grad, neg_grad = _gradients(sums, y, num_neg) if gradients else (None, None)  # first: see BlockSums
    return PairwiseTerms(sums.excess / num_neg, sums.active / num_neg, pos_grad, neg_grad)


def mean_excess(pos: Tensor, neg: Tensor, s: Tensor, loss: Surrogate, masks: TaskMasks | None = None) -> Tensor:
    """``excess`` of :func:`pairwise_terms` alone, for checked scores of one dtype; the caller switches gradients off.

    Example:
        >>> mean_excess(torch.tensor([0.0]), torch.tensor([0.5, -2.0]), torch.zeros(1), get_surrogate("hinge"))
        tensor([0.5000])
    """
    neg_mask = None if masks is None else masks.neg
    if _choose(pos, neg, loss, "auto") == "dense":
        excess = dense_excess(pos, neg, s, loss, neg_mask)
    else:
        excess = sorted_sums(pos, neg, s, loss, neg_mask).excess
    return excess / column(number(neg, neg_mask))


def weighted_excess(
    pos_scores: Tensor,
    neg_scores: Tensor,
    thresholds: Tensor,
    weights: Tensor | None = None,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float = 0.5,
    scale: float = 1.0,
    method: str = "auto",
) -> tuple[Tensor, Tensor]:
    r"""The weighted sum of mean excess losses, differentiable with respect to all scores.

    .. math:: V = \sum_{i=1}^S y_i \frac1B \sum_{j=1}^B (\ell(h_j - h_i) - s_i)_+

    The gradients are computed with the value, so the graph holds S + B numbers instead of the S x B pairs.
    ``thresholds`` and ``weights`` are constants of the step and get no gradient. Weights that follow from the mean
    excess losses are for :func:`evaluate_pairs`.

    Args:
        pos_scores: as in :func:`pairwise_terms`.
        neg_scores: as in :func:`pairwise_terms`.
        thresholds: as in :func:`pairwise_terms`.
        weights: as in :func:`pairwise_terms`.
        surrogate: as in :func:`pairwise_terms`.
        margin: as in :func:`pairwise_terms`.
        scale: as in :func:`pairwise_terms`.
        method: as in :func:`pairwise_terms`.

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
    pos, neg, s, y = _prepare(pos_scores, neg_scores, thresholds, weights)
    pairs = Pairs(pos, neg, _sums(pos.detach(), neg.detach(), _without_graph(s), loss, method))
    value = pairs.weighted_sum(y)
    return value, pairs.active


class Pairs:
    """What :func:`evaluate_pairs` returns: sums over pairs, without a graph, and the loss that is made of them.

    The pairs of a surrogate that can't be sorted are not kept where they are many. :meth:`weighted_sum` finds all sums
    in one round over them; asking for :attr:`excess` or :attr:`active` before takes a second one.

    Example:
        >>> pairs = evaluate_pairs(torch.tensor([0.0, 1.0]), torch.tensor([0.5, -2.0]), torch.zeros(2))
        >>> pairs.excess, pairs.active, pairs.weighted_sum(torch.ones(2))
        (tensor([0.5000, 0.0000]), tensor([0.5000, 0.0000]), tensor(0.5000))
    """

    def __init__(
        self,
        pos: Tensor,
        neg: Tensor,
        sums: PairSums,
        dual_excess: Tensor | None = None,
        neg_mask: Tensor | None = None,
    ) -> None:
        self._pos, self._neg, self._sums, self._dual_excess = pos, neg, sums, dual_excess
        self.num_neg = column(number(neg, neg_mask))

    @cached_property
    def excess(self) -> Tensor:
        r"""``(S,)``, :math:`\frac1B \sum_j (\ell_{ij} - s_i)_+`."""
        return _without_graph(self._sums.excess) / self.num_neg

    @cached_property
    def active(self) -> Tensor:
        r"""``(S,)``, the share of negatives with :math:`\ell_{ij} > s_i`."""
        return _without_graph(self._sums.active) / self.num_neg

    @property
    def dual_excess(self) -> Tensor:
        """``(S,)``, the mean excess losses on the dual negatives; :attr:`excess` where there are no others."""
        return self.excess if self._dual_excess is None else self._dual_excess

    def weighted_sum(self, weights: Tensor) -> Tensor:
        r""":math:`\sum_i y_i\,\mathrm{excess}_i`, differentiable with respect to the scores.

        Args:
            weights: float tensor ``(S,)``, :math:`y_i`: constants, which get no gradient.

        Returns:
            Scalar tensor, or the sum of each task, ``(K,)``. A backward pass with ``create_graph=True`` raises
            :class:`~lightning_tpauc.errors.UnsupportedError`.

        Raises:
            ArgumentError: unless there is one weight for every positive.
        """
        check_per_positive(weights, "weights", self._pos)
        y = weights if weights.dtype == self._pos.dtype else weights.to(self._pos.dtype)
        if torch.is_grad_enabled() and (self._pos.requires_grad or self._neg.requires_grad):
            value: Tensor = _WeightedSum.apply(self._pos, self._neg, self, self._sums, y)
            return value
        return (self.excess * y.detach()).sum(-1)


def evaluate_pairs(
    pos_scores: Tensor,
    neg_scores: Tensor,
    thresholds: Tensor,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float = 0.5,
    scale: float = 1.0,
    method: str = "auto",
    dual_neg_scores: Tensor | None = None,
    masks: TaskMasks | None = None,
) -> Pairs:
    r"""Evaluate all pairs once, for weights that follow from their mean excess losses.

    A primal-dual step needs the excess before it knows the weights. This is the first half; the second is
    :meth:`Pairs.weighted_sum`, which uses what was computed here.

    Args:
        pos_scores: as in :func:`pairwise_terms`.
        neg_scores: as in :func:`pairwise_terms`.
        thresholds: as in :func:`pairwise_terms`.
        surrogate: as in :func:`pairwise_terms`.
        margin: as in :func:`pairwise_terms`.
        scale: as in :func:`pairwise_terms`.
        method: as in :func:`pairwise_terms`.
        dual_neg_scores: float tensor ``(B',)``, an independent batch of negatives for ``dual_excess``; constants, which
            get no gradient.
        masks: which scores of K tasks are there; all shapes then have a leading K, and a padded positive has to have
            the weight 0.

    Returns:
        :class:`Pairs`, in the widest dtype of the inputs, at least float32.

    Raises:
        ArgumentError: as in :func:`pairwise_terms`.

    Example:
        >>> pos = torch.tensor([0.0, 1.0], requires_grad=True)
        >>> pairs = evaluate_pairs(pos, torch.tensor([0.5, -2.0]), torch.zeros(2))
        >>> value = pairs.weighted_sum((2.0 * pairs.excess).clamp(0.0, 1.0))
        >>> value.backward()
        >>> value.item(), pos.grad
        (0.5, tensor([-1., -0.]))
    """
    loss = get_surrogate(surrogate, margin, scale)
    _check(pos_scores, neg_scores, thresholds, masks)
    neg_mask = None if masks is None else masks.neg
    # Detached scores instead of torch.no_grad(), which costs a step of a small batch two per cent.
    if dual_neg_scores is None:
        pos, neg, s = _in_one_dtype(pos_scores, neg_scores, thresholds)
        sums = _sums(pos.detach(), neg.detach(), _without_graph(s), loss, method, neg_mask)
        return Pairs(pos, neg, sums, neg_mask=neg_mask)
    if masks is None:
        check_scores(dual_neg_scores, "dual_neg_scores")
    pos, neg, s, dual_neg = _in_one_dtype(pos_scores, neg_scores, thresholds, dual_neg_scores)
    constants = pos.detach(), neg.detach(), _without_graph(s), dual_neg.detach()
    return Pairs(pos, neg, *_sums_and_dual_excess(*constants, loss, method, masks), neg_mask)


class _WeightedSum(torch.autograd.Function):
    """The weighted sum; backward scales the gradients that forward already has."""

    @staticmethod
    def forward(ctx: Any, _pos: Tensor, _neg: Tensor, pairs: Pairs, sums: PairSums, y: Tensor) -> Tensor:
        ctx.save_for_backward(*_gradients(sums, y, pairs.num_neg))  # first: see BlockSums
        return (pairs.excess * y).sum(-1)

    @staticmethod
    def backward(ctx: Any, grad_value: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            # The saved gradients carry no graph: second derivatives would silently miss this term.
            msg = "Pairwise losses have no second derivatives here. Call backward without `create_graph=True`."
            raise UnsupportedError(msg)
        pos_grad, neg_grad = ctx.saved_tensors
        grad_value = grad_value.unsqueeze(-1) if grad_value.ndim else grad_value
        return grad_value * pos_grad, grad_value * neg_grad, None, None, None


def _prepare(
    pos: Tensor, neg: Tensor, s: Tensor, weights: Tensor | None, masks: TaskMasks | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check(pos, neg, s, masks)
    y = torch.ones_like(s) if weights is None else weights
    check_per_positive(y, "weights", pos)
    pos, neg, s, y = _in_one_dtype(pos, neg, s, y)
    return pos, neg, s, y


def _check(pos: Tensor, neg: Tensor, s: Tensor, masks: TaskMasks | None = None) -> None:
    if masks is None:
        check_scores(pos, "pos_scores", allow_empty=True)
        check_scores(neg, "neg_scores")
    elif (masks.pos.shape, masks.neg.shape) != (pos.shape, neg.shape):
        msg = (
            f"Expected `masks` of the scores' shapes, {tuple(pos.shape)} and {tuple(neg.shape)}, but got "
            f"{tuple(masks.pos.shape)} and {tuple(masks.neg.shape)}."
        )
        raise ArgumentError(msg)
    check_per_positive(s, "thresholds", pos)


def _in_one_dtype(*tensors: Tensor) -> tuple[Tensor, ...]:
    if {x.dtype for x in tensors} == {torch.float32}:
        return tensors  # the usual case, in every step
    dtype = common_dtype(*tensors)
    return tuple(x.to(dtype) for x in tensors)


def _without_graph(x: Tensor) -> Tensor:
    """A surrogate with parameters of its own leaves a graph even where the scores have none."""
    return x.detach() if x.requires_grad else x


def _gradients(sums: PairSums, y: Tensor, num_neg: float | Tensor) -> tuple[Tensor, Tensor]:
    pos_grad_sum, neg_grad_sum = sums.grad_sums(y)
    return pos_grad_sum * y / -num_neg, neg_grad_sum / num_neg


def _sums(
    pos: Tensor, neg: Tensor, s: Tensor, loss: Surrogate, method: str, neg_mask: Tensor | None = None
) -> PairSums:
    return (sorted_sums if _choose(pos, neg, loss, method) == "sorted" else dense_sums)(pos, neg, s, loss, neg_mask)


def _sums_and_dual_excess(
    pos: Tensor, neg: Tensor, s: Tensor, dual_neg: Tensor, loss: Surrogate, method: str, masks: TaskMasks | None
) -> tuple[PairSums, Tensor]:
    if masks is not None:
        sums, dual_sums = (
            _sums(pos, scores, s, loss, method, mask) for scores, mask in ((neg, masks.neg), (dual_neg, masks.dual_neg))
        )
        return sums, _without_graph(dual_sums.excess) / column(number(dual_neg, masks.dual_neg))
    num_dual = dual_neg.shape[0]
    if in_one_block(pos, neg.shape[0] + num_dual) and _choose(pos, neg, loss, method) == "dense":
        sums, excess = dense_sums_of_two(pos, neg, dual_neg, s, loss)
        return sums, _without_graph(excess) / num_dual
    return _sums(pos, neg, s, loss, method), _without_graph(_sums(pos, dual_neg, s, loss, method).excess) / num_dual


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
    small = pos.numel() * neg.shape[-1] <= _CROSSOVER["cpu" if neg.device.type == "cpu" else "other"]
    return "dense" if loss.power is None or small or neg.device.type == "mps" else "sorted"
