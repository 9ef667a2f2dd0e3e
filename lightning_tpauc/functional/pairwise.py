r"""Sums over all positive-negative pairs, in O((S + B) log(S + B)) where the surrogate allows it.

For scores :math:`h`, positives i = 1 .. S, negatives j = 1 .. B and :math:`\ell_{ij} = \ell(h_j - h_i)`, every method
of this package needs :math:`\frac1B \sum_j (\ell_{ij} - s_i)_+`, the share of pairs with :math:`\ell_{ij} > s_i`, and
the gradients of the weighted sum over i.

*Dense* evaluation forms the S x B matrix, in blocks of bounded size. *Sorted* evaluation uses that l is a polynomial of
the scores wherever it is not zero: with the negatives in descending order, the active ones of positive i come first,
and prefix sums of :math:`1, h_j, h_j^2` give all sums over them. Both return the same numbers; pairs whose loss equals
the threshold up to rounding may be counted as active by one and not by the other.

Scores of one label are ``(S,)`` and ``(B,)``, those of K labels ``(K, S)`` and ``(K, B)``: everything below works along
the last dimension. Numbers of a label, such as :math:`s'`, have the shape that is left, ``()`` or ``(K,)``. Masks of
several labels leave out what pads a row and what was not measured; masked scores must be finite and count for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.functional.checks import as_float_tensor, check_choice, check_scores
from lightning_tpauc.functional.surrogates import PowerForm, Surrogate, get_surrogate

Number = TypeVar("Number", bound="float | Tensor")

# ---------------------------------------------------------------- one label and several


class TaskMasks(NamedTuple):
    """Which scores of K labels are there.

    Attributes:
        pos: bool tensor ``(K, S)``. A label without any is not in play: nothing of it changes.
        neg: bool tensor ``(K, B)``, at least one in every label that is in play.
        dual_neg: bool tensor ``(K, B')`` of a second batch of negatives, if there is one.
    """

    pos: Tensor
    neg: Tensor
    dual_neg: Tensor | None = None

    @property
    def with_dual_negatives(self) -> TaskMasks:
        """The masks with the second batch of negatives, if there is one, in the place of the first."""
        return self if self.dual_neg is None else self._replace(neg=self.dual_neg)


def column(x: Number) -> Number:
    """One number for each label, ``(K,)``, as a column that broadcasts over its scores; a single number unchanged."""
    return x.unsqueeze(-1) if isinstance(x, Tensor) and x.ndim else x  # type: ignore[return-value]  # a tensor for one


def add_scaled(x: Tensor, y: Tensor, factor: float | Tensor, unit: float | Tensor = 1.0) -> Tensor:
    """``x + factor * y / unit``, in one pass where the factor is one number."""
    if isinstance(factor, Tensor):
        scale = factor / unit
        return x + y * (column(scale) if y.ndim > scale.ndim else scale)
    return torch.addcdiv(x, y, unit, value=factor) if isinstance(unit, Tensor) else x.add(y, alpha=factor / unit)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """The sum of products along the last dimension."""
    return torch.dot(x, y) if x.ndim == 1 and x.dtype == y.dtype else (x * y).sum(-1)


def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A short tensor, which is sent to the device once."""
    make: Callable[..., Tensor] = torch.tensor if torch.compiler.is_compiling() else _remembered
    return make(values, dtype=dtype, device=device)


_remembered = lru_cache(torch.tensor)


def number(scores: Tensor, mask: Tensor | None) -> int | Tensor:
    """How many scores there are, at least 1: sums over none are 0 anyway; with a mask those of each label, ``(K,)``."""
    return max(1, scores.shape[-1]) if mask is None else mask.sum(-1, dtype=scores.dtype).clamp_min(1.0)


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of one label; with masks of each, 0 where nothing is there."""
    return values.mean() if mask is None else (values * mask).sum(-1) / number(values, mask)


def there(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Scores that are there, and 0 instead of the others, whatever these are."""
    return scores if mask is None else torch.where(mask, scores, scores.new_zeros(()))


def in_play(new: Tensor, old: Tensor | float, masks: TaskMasks | None) -> Tensor:
    """``new``, ``(K,)``, for labels in play and ``old`` for the others; ``new`` without masks."""
    return new if masks is None else torch.where(masks.pos.any(-1), new, old)


def floor_count(theta: float, n: int) -> int:
    r"""The largest integer not above :math:`\theta n`, as eq. ``tpauc-o`` counts examples.

    ``theta`` is in (0, 1], and products that miss an integer by rounding count as that integer.
    """
    return math.floor(theta * n + _tolerance(n))


def ceil_count(theta: float, n: int) -> int:
    r"""The smallest integer not below :math:`\theta n`, which ranks the quantiles of the CVaR form."""
    return math.ceil(theta * n - _tolerance(n))


def _tolerance(n: int) -> float:
    # theta = 1 - min_tpr is off by up to an ulp of 1, which n multiplies: past 4.5 million that exceeds 1e-9.
    return max(1e-9, 2.0**-52 * n)


def ranked(scores: Tensor, share: float | Tensor, mask: Tensor | None, *, largest: bool = True) -> Tensor:
    r"""The :math:`\lceil \theta n \rceil`-th highest score, at least the highest; or the lowest.

    With a mask, ``share`` may be a tensor ``(K,)`` of the device's most precise dtype, and the result is infinite for a
    label without scores.
    """
    if mask is None:
        rank = max(1, ceil_count(float(share), scores.shape[-1]))
        return torch.topk(scores, rank, largest=largest).values[..., -1]
    dtype = widest_float(scores.device)
    count = mask.sum(-1).to(dtype)
    # as `ceil_count` does for numbers on the host
    slack = (torch.finfo(dtype).eps * count).clamp_min(1e-9)
    place = (count * share - slack).ceil().long().clamp_min(1) - 1
    down = scores.masked_fill(~mask, -torch.inf if largest else torch.inf).sort(-1, descending=largest).values
    return down.gather(-1, place.unsqueeze(-1)).squeeze(-1)


def put_(state: Tensor, index: Tensor, values: Tensor) -> None:
    """Write ``values`` into the entries ``index`` of per-positive state; those that come twice have equal values."""
    state.index_copy_(0, index.reshape(-1), values.to(state.dtype).reshape(-1))


def add_(state: Tensor, index: Tensor, values: Tensor, factor: float = 1.0) -> None:
    """Add ``factor * values`` to the entries ``index`` of per-positive state; to those that come twice, 0 is added."""
    state.index_add_(0, index.reshape(-1), values.to(state.dtype).reshape(-1), alpha=factor)


def common_dtype(*tensors: Tensor) -> torch.dtype:
    """The widest dtype of ``tensors``, at least float32: sums over pairs lose too much in half precision."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = dtype if tensor.dtype == dtype else torch.promote_types(dtype, tensor.dtype)
    return dtype


def full_precision(kind: str) -> AbstractContextManager[Any]:
    """Context that turns mixed precision off on a kind of device, for sums over pairs."""
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def widest_float(device: torch.device) -> torch.dtype:
    """The most precise dtype of a device: float64, which Apple's GPUs do not have."""
    return torch.float32 if device.type == "mps" else torch.float64


# ---------------------------------------------------------------- what is asked for


class PairwiseTerms(NamedTuple):
    r"""What :func:`pairwise_terms` returns, without a graph.

    Attributes:
        excess: ``(S,)``, :math:`\frac1B \sum_j (\ell_{ij} - s_i)_+`, at least 0.
        active: ``(S,)``, the share of negatives with :math:`\ell_{ij} > s_i`, in [0, 1].
        pos_grad: ``(S,)``, :math:`\partial V / \partial h_i` of :math:`V = \sum_i y_i\,\mathrm{excess}_i`.
        neg_grad: ``(B,)``, :math:`\partial V / \partial h_j`.
    """

    excess: Tensor
    active: Tensor
    pos_grad: Tensor
    neg_grad: Tensor


@torch.no_grad()
def pairwise_terms(
    pos_scores: Tensor,
    neg_scores: Tensor,
    thresholds: Tensor,
    weights: Tensor | None = None,
    surrogate: str | Surrogate = "hinge",
    margin: float = 1.0,
    scale: float = 1.0,
    method: str = "auto",
    masks: TaskMasks | None = None,
) -> PairwiseTerms:
    r"""Mean excess loss and share of active pairs of every positive, and the gradients of their weighted sum.

    .. math::
        \mathrm{excess}_i = \frac1B \sum_{j=1}^B (\ell(h_j - h_i) - s_i)_+, \qquad
        \mathrm{active}_i = \frac1B |\{j : \ell(h_j - h_i) > s_i\}|

    Tensors may come as arrays or lists as well.

    Args:
        pos_scores: float tensor ``(S,)``, scores :math:`h_i` of positives; S may be 0.
        neg_scores: float tensor ``(B,)``, scores :math:`h_j` of negatives, B at least 1.
        thresholds: float tensor ``(S,)``, :math:`s_i`, any real numbers; below 0 every pair is active.
        weights: float tensor ``(S,)``, :math:`y_i`; ones if ``None``.
        surrogate: name or :class:`~lightning_tpauc.functional.Surrogate`.
        margin: m of the hinge, square and ramp surrogates.
        scale: factor inside the logistic surrogate.
        method: ``"dense"``, ``"sorted"`` or ``"auto"``, which decides by S and B alone.
        masks: which scores of K labels are there; all shapes above then have a leading K.

    Returns:
        :class:`PairwiseTerms` in the widest dtype of the inputs, at least float32.

    Raises:
        ArgumentError: if shapes or dtypes don't fit, B is 0, the method is unknown, or sorting was asked for a
            surrogate that can't be sorted.

    Example:
        >>> pos, neg = torch.tensor([0.0, 1.0]), torch.tensor([0.5, -2.0])
        >>> terms = pairwise_terms(pos, neg, torch.zeros(2), surrogate="squared_hinge", margin=0.5)
        >>> terms.excess, terms.active
        (tensor([0.5000, 0.0000]), tensor([0.5000, 0.0000]))
        >>> terms.pos_grad, terms.neg_grad
        (tensor([-1., -0.]), tensor([1., 0.]))
    """
    loss = get_surrogate(surrogate, margin, scale)
    pos, neg, s = _checked(pos_scores, neg_scores, thresholds, loss, method, masks)
    y = torch.ones_like(s) if weights is None else _per_positive(weights, "weights", pos)
    pairs = Pairs(pos.to(common_dtype(pos, y)), neg, s, loss, masks, method=method)
    of_pos, of_neg = pairs.sums.grad_sums(y.to(pairs.pos.dtype) / column(pairs.num_neg))  # first: see DenseSums
    return PairwiseTerms(pairs.excess, pairs.active, -of_pos, of_neg)


class Pairs:
    """What :func:`evaluate_pairs` returns: sums over pairs, without a graph, and the loss that is made of them.

    Many pairs that can't be sorted are not kept: asking for :attr:`excess` or :attr:`active` before
    :meth:`weighted_sum` takes a second round over them.

    Example:
        >>> pairs = evaluate_pairs(torch.tensor([0.0, 1.0]), torch.tensor([0.5, -2.0]), torch.zeros(2))
        >>> pairs.excess, pairs.active, pairs.weighted_sum(torch.ones(2))
        (tensor([0.7500, 0.2500]), tensor([0.5000, 0.5000]), tensor(1.))
    """

    def __init__(
        self,
        pos: Tensor,
        neg: Tensor,
        thresholds: Tensor,
        loss: Surrogate,
        masks: TaskMasks | None = None,
        dual_neg: Tensor | None = None,
        method: str = "auto",
        *,
        nonnegative: bool = False,
    ) -> None:
        tensors = [pos, neg, thresholds] if dual_neg is None else [pos, neg, thresholds, dual_neg]
        if any(x.dtype != torch.float32 for x in tensors):
            dtype = common_dtype(*tensors)
            pos, neg, thresholds, *_ = tensors = [x.to(dtype) for x in tensors]
        neg_mask = None if masks is None else masks.neg
        self.loss, self.masks, self.num_neg = loss, masks, number(neg, neg_mask)
        self.pos, self.neg = pos, neg
        # Detached scores instead of torch.no_grad(), which costs a step of a small batch two per cent.
        constants = pos.detach(), neg.detach(), thresholds.detach()
        #: The same positives with the dual negatives; this object itself where there are no others.
        self.dual = self
        if dual_neg is not None:
            dual_masks = None if masks is None else masks.with_dual_negatives
            self.dual = Pairs(constants[0], tensors[3].detach(), constants[2], loss, dual_masks, method=method)
        kind = SortedSums if _sorts(pos, neg, loss, method) else DenseSums
        self.sums: SortedSums | DenseSums = kind(*constants, loss, neg_mask)
        self.sums.nonnegative = nonnegative  # whether the thresholds are at least 0 for certain

    @property
    def totals(self) -> tuple[Tensor, Tensor]:
        r"""``(S,)`` each: :math:`\sum_j (\ell_{ij} - s_i)_+`, and how many negatives have :math:`\ell_{ij} > s_i`."""
        return self.sums.totals

    @property
    def excess(self) -> Tensor:
        r"""``(S,)``, :math:`\frac1B \sum_j (\ell_{ij} - s_i)_+`."""
        return self.sums.totals[0] / column(self.num_neg)

    @property
    def active(self) -> Tensor:
        r"""``(S,)``, the share of negatives with :math:`\ell_{ij} > s_i`."""
        return self.sums.totals[1] / column(self.num_neg)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        r""":math:`\sum_i y_i\,\mathrm{excess}_i`, differentiable with respect to the scores.

        The gradients are computed with the value, so the graph holds S + B numbers instead of the S x B pairs. A shift
        of all scores changes no pair: the gradients add up to 0, up to rounding.

        Args:
            weights: float tensor ``(S,)``, :math:`y_i`: constants, which get no gradient.

        Returns:
            Scalar tensor, or the sum of each label, ``(K,)``. A backward pass with ``create_graph=True`` raises
            :class:`~lightning_tpauc.errors.UnsupportedError`.

        Raises:
            ArgumentError: unless there is one weight for every positive.
        """
        y = _per_positive(weights, "weights", self.pos).detach().to(self.pos.dtype)
        return self.attached(lambda: (self.excess * y).sum(-1), y / column(self.num_neg))

    def attached(self, value: Callable[[], Tensor], weights: Tensor) -> Tensor:
        r"""``value()``, whose gradients are made those of :math:`\sum_i w_i \sum_j (\ell_{ij} - s_i)_+`."""
        if not torch.is_grad_enabled() or not (self.pos.requires_grad or self.neg.requires_grad):
            return value()
        of_pos, of_neg = self.sums.grad_sums(weights)  # first: see DenseSums
        return with_gradients(value(), self.pos, self.neg, -of_pos, of_neg)

    def tail_mean(self, theta: float | Tensor) -> Tensor | None:
        r"""The mean of the positives' mean losses over the hardest :math:`\theta_1` of the negatives, ``()``, ``(K,)``.

        ``None`` where these sums don't tell it: where many pairs were sorted, and each positive has negatives of its
        own that are the hardest, or several labels have as many as their masks say.
        """
        return self.sums.tail_mean(theta, None if self.masks is None else self.masks.pos)


def evaluate_pairs(
    pos_scores: Tensor,
    neg_scores: Tensor,
    thresholds: Tensor,
    surrogate: str | Surrogate = "hinge",
    margin: float = 1.0,
    scale: float = 1.0,
    method: str = "auto",
    dual_neg_scores: Tensor | None = None,
    masks: TaskMasks | None = None,
) -> Pairs:
    r"""Evaluate all pairs once, for weights that follow from their mean excess losses.

    A primal-dual step needs the excess before it knows the weights. This is the first half; the second is
    :meth:`Pairs.weighted_sum`, which uses what was computed here. Errors are those of :func:`pairwise_terms`.

    Args:
        pos_scores: float tensor ``(S,)``.
        neg_scores: float tensor ``(B,)``.
        thresholds: float tensor ``(S,)``; constants, which get no gradient.
        surrogate: name or :class:`~lightning_tpauc.functional.Surrogate`.
        margin: m of the hinge, square and ramp surrogates.
        scale: factor inside the logistic surrogate.
        method: ``"dense"``, ``"sorted"`` or ``"auto"``.
        dual_neg_scores: float tensor ``(B',)``, an independent batch of negatives for ``dual``; constants, which get no
            gradient.
        masks: which scores of K labels are there; a padded positive has to have the weight 0.

    Returns:
        :class:`Pairs`, in the widest dtype of the inputs, at least float32.

    Example:
        >>> pos = torch.tensor([0.0, 1.0], requires_grad=True)
        >>> pairs = evaluate_pairs(pos, torch.tensor([0.5, -2.0]), torch.zeros(2))
        >>> value = pairs.weighted_sum((2.0 * pairs.excess).clamp(0.0, 1.0))
        >>> value.backward()
        >>> value.item(), pos.grad
        (0.875, tensor([-0.5000, -0.2500]))
    """
    loss = get_surrogate(surrogate, margin, scale)
    pos, neg, s = _checked(pos_scores, neg_scores, thresholds, loss, method, masks)
    if dual_neg_scores is not None and masks is None:
        dual_neg_scores = check_scores(dual_neg_scores, "dual_neg_scores")
    return Pairs(pos, neg, s, loss, masks, dual_neg_scores, method)


def _checked(
    pos: Any, neg: Any, thresholds: Any, loss: Surrogate, method: str, masks: TaskMasks | None
) -> tuple[Tensor, Tensor, Tensor]:
    check_choice(method, "method", ("auto", "dense", "sorted"))
    if method == "sorted" and loss.power is None:
        msg = f'Expected a surrogate that can be sorted, but got {loss.name!r}. Use method="dense" or "auto".'
        raise ArgumentError(msg)
    if masks is None:
        pos, neg = check_scores(pos, "pos_scores", allow_empty=True), check_scores(neg, "neg_scores")
    elif (masks.pos.shape, masks.neg.shape) != (pos.shape, neg.shape):
        msg = (
            f"Expected `masks` of the scores' shapes, {tuple(pos.shape)} and {tuple(neg.shape)}, but got "
            f"{tuple(masks.pos.shape)} and {tuple(masks.neg.shape)}."
        )
        raise ArgumentError(msg)
    return pos, neg, _per_positive(thresholds, "thresholds", pos)


def _per_positive(values: Any, name: str, pos: Tensor) -> Tensor:
    found = as_float_tensor(values, name)
    if not found.is_floating_point() or found.shape != pos.shape:
        wanted = f"a float tensor with one entry per positive, shape {tuple(pos.shape)}"
        raise ArgumentError(f"Expected `{name}` to be {wanted}, but got {found.dtype} of shape {tuple(found.shape)}.")
    return found


#: Gradients of so many examples are made to sum up to exactly 0.
_MOST_BALANCED = 2**12


class _WithGradients(torch.autograd.Function):
    """A value whose gradients by the scores are known."""

    @staticmethod
    def forward(ctx: Any, pos: Tensor, neg: Tensor, value: Tensor, joint: Tensor) -> Tensor:
        ctx.save_for_backward(joint)
        ctx.sizes = pos.shape[-1], neg.shape[-1]
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad_value: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            # The saved gradients carry no graph: second derivatives would silently miss this term.
            msg = "Pairwise losses have no second derivatives here. Call backward without `create_graph=True`."
            raise UnsupportedError(msg)
        (joint,) = ctx.saved_tensors
        return *_balanced(column(grad_value) * joint).split_with_sizes(ctx.sizes, -1), None, None


def with_gradients(value: Tensor, pos: Tensor, neg: Tensor, pos_grad: Tensor, neg_grad: Tensor) -> Tensor:
    """``value``, ``()`` or ``(K,)``, of a loss of pairs, whose gradients by the scores are known constants."""
    return _WithGradients.apply(pos, neg, value, torch.cat([pos_grad, neg_grad], -1))


def _balanced(gradients: Tensor) -> Tensor:
    """Gradients of a batch that sum up to 0 in any order of adding: a shift of all scores changes no pair.

    Adam would make full steps of the last layer's bias of the rest that rounding leaves. So the gradients become
    multiples of a power of 2, large enough for every sum of them to be exact, and the most negative one, which a
    positive has, takes what is then left. Of many examples too few digits are left.
    """
    if widest_float(gradients.device) != torch.float64 or gradients.shape[-1] > _MOST_BALANCED:
        return gradients
    # What is added to a number this large keeps 24 bits, or 51 of those of a double, which has 53.
    room = 2.0**29 if gradients.dtype == torch.float32 else 2.0
    large = torch.linalg.vector_norm(gradients, 1, dim=-1, keepdim=True, dtype=torch.float64)
    balanced = torch.add(gradients, large, alpha=room).sub_(large, alpha=room)
    rest, place = balanced.sum(-1, keepdim=True), gradients.argmin(-1, keepdim=True)
    if balanced.ndim == 1:
        return balanced.index_add_(0, place, rest, alpha=-1.0).to(gradients.dtype)
    return balanced.scatter_add_(-1, place, -rest).to(gradients.dtype)


# ---------------------------------------------------------------- dense or sorted

# Pairs above which sorting wins. Median ms on one core, squared hinge with gradients, dense / sorted:
# 32 x 32 0.09 / 0.24, 128 x 128 0.15 / 0.25, 128 x 256 0.20 / 0.27, 256 x 256 0.31 / 0.28, 1024 x 8192 80 / 1.9.
# On the H200 0.35 / 1.0 up to 2048 x 4096, 1.2 / 1.1 at 4096 x 8192, so there the block decides.
_CROSSOVER = {"cpu": 2**15}
# Elements of the largest temporary of the dense evaluation. On a CPU, larger ones leave the cache and come from fresh
# pages: one core took 9 ns a pair at 2^16, 20 to 40 ns at 2^22. On a GPU smaller ones wait for launches: an H200 took
# 13 ms for 4096 x 65536 logistic pairs at 2^22, 53 ms at 2^20, 9 ms and 3.5 times the memory at 2^24.
_BLOCK = {"cpu": 2**16}
_ON_GPUS = 2**22


def _sorts(pos: Tensor, neg: Tensor, loss: Surrogate, method: str) -> bool:
    """Whether pairs are evaluated by sorting."""
    if method != "auto" or loss.power is None:
        return method == "sorted"
    # Apple's GPUs have no float64, which the prefix sums need.
    few = pos.numel() * neg.shape[-1] <= _CROSSOVER.get(neg.device.type, _ON_GPUS)
    return not few and neg.device.type != "mps"


# ---------------------------------------------------------------- dense


class DenseSums:
    r"""Sums over the negatives j of each positive i, by forming the pairs.

    Pairs that fit into one block are kept. More are formed, block by block, when a sum is asked for: :meth:`grad_sums`
    finds ``totals`` on its way, and who asks for these before pays for two rounds.
    """

    nonnegative = False

    def __init__(self, pos: Tensor, neg: Tensor, s: Tensor, loss: Surrogate, neg_mask: Tensor | None) -> None:
        self._scores, self._loss, self._neg_mask = (pos, neg, s), loss, neg_mask
        self.kept: tuple[Tensor, Tensor, Tensor] | None = None
        self._totals: tuple[Tensor, Tensor] | None = None
        if pos.numel() * neg.shape[-1] <= _BLOCK.get(pos.device.type, _ON_GPUS):
            t = (neg if neg.ndim == 1 else neg.unsqueeze(-2)) - pos.unsqueeze(-1)  # (S, B)
            losses = loss.value(t)
            over = losses - s.unsqueeze(-1)
            if neg_mask is not None:  # what is not there exceeds no threshold, not even one below 0
                over.masked_fill_(~neg_mask.unsqueeze(-2), -torch.inf)
            # Small batches cost what their number of operations costs, and those on bools take a CPU longer.
            is_active = over.clamp_min_(0.0).sign()
            self.kept, self._totals = (t, losses, is_active), (over.sum(-1), is_active.sum(-1))

    @property  # functools.cached_property has a lock up to Python 3.11, which no compiled graph can hold
    def totals(self) -> tuple[Tensor, Tensor]:
        """Sums of the excess, and numbers of active pairs."""
        if self._totals is None:
            self._totals = self._over_blocks(None)[:2]
        return self._totals

    def grad_sums(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        r"""Sums over active pairs of :math:`w_i \ell'_{ij}`: ``(S,)`` over j, and ``(B,)`` over i."""
        if self.kept is None:
            excess, active, of_pos, of_neg = self._over_blocks(weights)
            self._totals = excess, active
            return of_pos, of_neg
        (t, losses, is_active), form = self.kept, self._loss.power
        # No matrix product: autocast would run it in half precision.
        slopes = is_active * weights.unsqueeze(-1)
        if not (isinstance(form, PowerForm) and form.degree == 1 and form.coefficient == 1.0):
            slopes.mul_(self._loss.derivative(t))
        elif not self.nonnegative:  # pairs left of a hinge may be active
            slopes.mul_(losses.sign())
        return slopes.sum(-1), slopes.sum(-2)

    @torch.no_grad()
    def _over_blocks(self, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """``totals`` and ``grad_sums``; without weights these are 0 and, over i, the sums of the losses."""
        pos, neg, s = self._scores
        num_neg, limit = neg.shape[-1], _BLOCK.get(neg.device.type, _ON_GPUS)
        per_row = neg.numel()  # pairs of one positive of each label
        rows, cols = max(1, limit // per_row), max(1, min(num_neg, limit * num_neg // per_row))
        excess, active, of_pos = pos.new_zeros(3, *pos.shape)
        of_neg = torch.zeros_like(neg)
        for i in range(0, pos.shape[-1], rows):
            row = (..., slice(i, i + rows))
            for j in range(0, num_neg, cols):
                col = (..., slice(j, j + cols))
                mask = None if self._neg_mask is None else self._neg_mask[col]
                block = DenseSums(pos[row], neg[col], s[row], self._loss, mask)
                excess[row] += block.totals[0]
                active[row] += block.totals[1]
                if weights is None:
                    of_neg[col] += block.kept[1].sum(-2)  # type: ignore[index]  # a block keeps its pairs
                    continue
                block_pos, block_neg = block.grad_sums(weights[row])
                of_pos[row] += block_pos
                of_neg[col] += block_neg
        return excess, active, of_pos, of_neg

    def tail_mean(self, theta: float | Tensor, pos_mask: Tensor | None) -> Tensor | None:
        """See :meth:`Pairs.tail_mean`."""
        num_pos: int | Tensor = self._scores[0].shape[-1]
        if self.kept is None:
            if not self._loss.monotone or pos_mask is not None:
                return None
            *totals, _, of_neg = self._over_blocks(None)
            self._totals = totals[0], totals[1]
            return _highest_mean(of_neg, theta, None) / num_pos
        losses = self.kept[1]
        if self._neg_mask is not None and pos_mask is not None:
            losses = losses * (self._neg_mask.unsqueeze(-2) & pos_mask.unsqueeze(-1))  # what is not there is the lowest
            num_pos = number(self._scores[0], pos_mask)
        if self._loss.monotone:  # the highest negatives cost every positive most, and have the largest sums
            return _highest_mean(losses.sum(-2), theta, self._neg_mask) / num_pos
        return _highest_mean(losses, theta, self._neg_mask).sum(-1) / num_pos


def _highest_mean(values: Tensor, theta: float | Tensor, mask: Tensor | None) -> Tensor:
    r"""Mean along the last dimension of the highest :math:`\theta n`, the last of which counts in part.

    With a mask, whose n differ, values that are not there have to be 0, and no other below that.
    """
    if mask is None:
        share = float(theta) * values.shape[-1]
        rank = max(1, ceil_count(float(theta), values.shape[-1]))
        top = torch.topk(values, rank).values
        mean = top.mean(-1)
        return mean if rank == share else torch.lerp(mean, top[..., -1], 1.0 - rank / share)
    tail = column(number(values, mask) * theta)  # (K, 1)
    counts = (tail - torch.arange(mask.shape[-1], device=mask.device)).clamp_(0.0, 1.0) / tail  # (K, B)
    if values.ndim > mask.ndim:
        counts = counts.unsqueeze(-2)
    return (values.sort(-1, descending=True).values * counts.to(values.dtype)).sum(-1)


# ---------------------------------------------------------------- sorted


class SortedSums:
    r"""As :class:`DenseSums`, by sorting, for a surrogate with a power form.

    Pieces that cancel each other, as those of a ramp, leave an error of about 1e-16 (range of the scores / m) to the
    power of their degree.
    """

    nonnegative = False

    def __init__(self, pos: Tensor, neg: Tensor, s: Tensor, loss: Surrogate, neg_mask: Tensor | None) -> None:
        assert loss.inverse is not None  # noqa: S101 - Surrogate has checked it
        self._dtype, self._neg_mask, self._loss, (first, *others) = pos.dtype, neg_mask, loss, loss.pieces
        pos, neg, s = pos.double(), neg.double(), s.double()
        if neg_mask is not None:
            neg = torch.where(neg_mask, neg, masked_mean(neg, neg_mask).unsqueeze(-1))
        if others and pos.shape[-1] and _is_bounded(loss.pieces):
            pos, neg = _within_reach(pos, neg, first.margin, others[-1].margin)
        # Squares of uncentred scores cancel. The mean also carries a nan of any score into all results.
        centre = masked_mean(neg, neg_mask).unsqueeze(-1)
        pos, neg = pos - centre, neg - centre
        if neg_mask is not None:
            neg = neg * neg_mask  # what is not there adds 0 to every sum but that of the number
        down, order = (-neg).sort()
        counted = None if neg_mask is None else neg_mask.gather(-1, order).double()
        above = _Above(down, counted, max(piece.degree for piece in loss.pieces))
        self._pos, self._above = pos, above
        # Below threshold 0 every pair counts as active, but pairs left of the hinge still add nothing but -s_i.
        edge = pos + loss.inverse(s.clamp_min(0.0))
        # Active pairs left of where a piece starts add nothing to it; the first piece starts before them all.
        starts = [edge, *(torch.maximum(edge, pos - piece.margin) for piece in others)]
        self._parts = [(pos, neg, start, piece) for start, piece in zip(starts, loss.pieces, strict=True)]
        sums = [above.sums(pos, above.count(start), piece) for _, _, start, piece in self._parts]
        if first.two_sided:
            # Left of -m, (m + t)^2 is the same polynomial of the mirrored scores with margin -m; the active pairs are
            # those below the mirror image of the edge.
            mirror = PowerForm(-first.margin, 2, coefficient=first.coefficient)
            self._parts.append((-pos, -neg, edge - 2.0 * pos + 2.0 * first.margin, mirror))
            mirrored = _Above(-down.flip(-1), None if counted is None else counted.flip(-1), 2)
            sums.append(mirrored.sums(-pos, mirrored.count(self._parts[1][2]), mirror))
        totals, numbers, slopes = zip(*sums, strict=True)
        every = float(neg.shape[-1]) if neg_mask is None else neg_mask.sum(-1, keepdim=True, dtype=neg.dtype)
        active = torch.where(s < 0, every, numbers[0] + numbers[1] if first.two_sided else numbers[0])
        excess = (sum(totals[1:], totals[0]) - s * active).clamp_min(0.0)  # rounding may leave -1e-17
        self.totals = excess.to(self._dtype), active.to(self._dtype)
        self._of_pos = self._joined(slopes).to(self._dtype)

    def grad_sums(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`DenseSums.grad_sums`."""
        y = weights.double()
        sums = self._joined([_one_sided_grad_sums(pos, neg, edge, y, piece) for pos, neg, edge, piece in self._parts])
        if self._neg_mask is not None:
            sums = sums * self._neg_mask
        return self._of_pos * weights, sums.to(self._dtype)

    def tail_mean(self, theta: float | Tensor, pos_mask: Tensor | None) -> Tensor | None:
        """See :meth:`Pairs.tail_mean`."""
        if not self._loss.monotone or pos_mask is not None:
            return None
        num_neg, pos = self._above.down.shape[-1], self._pos
        rank = max(1, ceil_count(float(theta), num_neg))
        share, last = float(theta) * num_neg, -self._above.down[rank - 1]
        losses = -(rank - share) * self._loss.value(last - pos)  # the last one counts in part
        for piece in self._loss.pieces:
            count = self._above.count(pos - piece.margin).clamp_max(rank)
            losses = losses + self._above.sums(pos, count, piece)[0]
        return (losses.mean() / share).to(self._dtype)

    def _joined(self, slopes: Sequence[Tensor]) -> Tensor:
        """The sum of the pieces' derivatives; that of a mirrored side falls."""
        if self._parts[0][3].two_sided:
            return slopes[0] - slopes[1]
        return sum(slopes[1:], slopes[0])


def _is_bounded(pieces: tuple[PowerForm, ...]) -> bool:
    """Whether the coefficients of t and t^2 add up to 0, so that the sum is constant right of where all have begun."""
    squares = [piece for piece in pieces if piece.degree == 2]
    linear = sum(p.coefficient for p in pieces if p.degree == 1) + sum(2.0 * p.coefficient * p.margin for p in squares)
    return linear == 0.0 and sum(p.coefficient for p in squares) == 0.0


def _within_reach(pos: Tensor, neg: Tensor, first: float, last: float) -> tuple[Tensor, Tensor]:
    """Scores of a bounded loss, moved to where it is constant too: one far away would cost all others their digits."""
    # The loss is constant for t <= -first and for t >= -last; as much again keeps the moved pairs clear of the kinks.
    left, right = 2.0 * first - last, first - 2.0 * last
    pos = pos.clamp(neg.amin(-1, keepdim=True) - right, neg.amax(-1, keepdim=True) + left)
    return pos, neg.clamp(pos.amin(-1, keepdim=True) - left, pos.amax(-1, keepdim=True) + right)


class _Above:
    """Sums over the highest negatives, as many as one says for each positive.

    ``down`` holds -h_j in ascending order: the pairs of every positive then come first, so that no sum has to be taken
    as the difference of two larger ones. ``counted`` is 1 for negatives that are there and 0 for others, whose ``down``
    is 0.
    """

    def __init__(self, down: Tensor, counted: Tensor | None, degree: int) -> None:
        self.down, self._has_number = down, counted is not None
        rows = [down] if degree == 1 else [down, down.square()]
        self._prefixes = _prefix_sums(torch.stack(rows if counted is None else [*rows, counted]))

    def count(self, edge: Tensor) -> Tensor:
        """Number of negatives above each edge."""
        return torch.searchsorted(self.down, -edge)

    def sums(self, pos: Tensor, count: Tensor, power: PowerForm) -> tuple[Tensor, Tensor, Tensor]:
        r"""Sums of :math:`c (m + h_j - h_i)^p`, of 1 and of the derivative over the ``count`` highest negatives."""
        offset = power.margin - pos  # m + h_j - h_i = offset_i + h_j
        moments = _entries(self._prefixes, count)
        number_above = moments[-1] if self._has_number else count.to(pos.dtype)
        linear = number_above * offset - moments[0]
        if power.degree == 1:
            total, grad_sum = linear, number_above
        else:
            total, grad_sum = offset * (linear - moments[0]) + moments[1], 2.0 * linear
        if power.coefficient != 1.0:
            total, grad_sum = power.coefficient * total, power.coefficient * grad_sum
        return total, number_above, grad_sum


def corner_sums(up: Tensor, down: Tensor, sizes: Sequence[tuple[int, int]], loss: Surrogate) -> list[Tensor]:
    """Sums of the losses of so many of the lowest positives and of the highest negatives, for each of several sizes.

    ``up`` holds the positives' scores and ``down`` the negatives' times -1, both in ascending order, in float64 where
    the device has it. A surrogate that can't be sorted takes all pairs at once.
    """
    if not loss.pieces:
        losses = loss.value(-down - up.unsqueeze(-1)).cumsum(0).cumsum(1)
        return [losses[num_pos - 1, num_neg - 1] for num_pos, num_neg in sizes]
    centre = down[len(down) // 2]
    up, down = up + centre, down - centre
    if len(loss.pieces) > 1 and _is_bounded(loss.pieces):
        up, neg = _within_reach(up, -down, loss.pieces[0].margin, loss.pieces[-1].margin)
        down = -neg
    above = _Above(down, None, max(piece.degree for piece in loss.pieces))
    every = torch.full_like(up, len(down), dtype=torch.int64)
    counts = [every if piece.two_sided else above.count(up - piece.margin) for piece in loss.pieces]

    def total(num_pos: int, num_neg: int) -> Tensor:
        below = (count[:num_pos].clamp_max(num_neg) for count in counts)
        sums = [above.sums(up[:num_pos], *each)[0].sum() for each in zip(below, loss.pieces, strict=True)]
        return sum(sums[1:], sums[0])

    return [total(*size) for size in sizes]


def _one_sided_grad_sums(pos: Tensor, neg: Tensor, edge: Tensor, y: Tensor, power: PowerForm) -> Tensor:
    r"""Sums over i of y_i times the derivative of :math:`c (m + h_j - h_i)^p`, one for each j, above the edges."""
    # A negative counts for the positives whose edge lies below it: the first ones in ascending order of edges.
    edge, order = edge.sort()
    rows = _entries(y[None] if power.degree == 1 else torch.stack([y, y * (power.margin - pos)]), order)
    sums = _entries(_prefix_sums(rows), torch.searchsorted(edge, neg))
    total = sums[0] if power.degree == 1 else 2.0 * (sums[1] + neg * sums[0])
    return total if power.coefficient == 1.0 else power.coefficient * total


def _entries(rows: Tensor, places: Tensor) -> Tensor:
    """Those entries of each row."""
    if places.ndim == 1:
        return rows[:, places]
    return rows.gather(-1, places.expand(rows.shape[0], *places.shape))


def _prefix_sums(rows: Tensor) -> Tensor:
    """Running sums along each row, ``(..., n + 1)``, starting from 0."""
    return torch.nn.functional.pad(rows.cumsum(-1), (1, 0))
