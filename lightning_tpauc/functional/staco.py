r"""The exact objective, and STACO, which approximates it: one function per line of the algorithm.

Symbols, with the names used here: :math:`y` ``dual_weights``, :math:`s` ``thresholds`` (one per positive), :math:`s'`
``global_threshold``, :math:`\theta_0 = 1 -` ``min_tpr``, :math:`\theta_1 =` ``max_fpr``. Labels such as (eqn:y) are
those of the paper's source (Zhou, Wang, Thai, Yang, TMLR 2025). :math:`\gamma = \infty` turns each line of STACO2 into
STACO1's.

All functions are pure. Per-positive arguments, :math:`y`, :math:`s`, the risks :math:`g_i`, ``excess`` and ``active``
(the mean of :math:`(\ell_{ij} - s_i)_+` over the negatives j, and the share of them with :math:`\ell_{ij} > s_i`), hold
the entries of the sampled positives only, shape ``(S,)``; all others are numbers, or tensors ``()``. For K labels they
have shape ``(K, S)``, and what is ``()`` here has shape ``(K,)``; see :mod:`lightning_tpauc.functional.pairwise`.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.functional.checks import check_rectangle, check_scores, rankable
from lightning_tpauc.functional.pairwise import (
    Pairs,
    TaskMasks,
    add_scaled,
    ceil_count,
    column,
    common_dtype,
    constant,
    corner_sums,
    dot,
    floor_count,
    masked_mean,
    number,
    ranked,
    widest_float,
)
from lightning_tpauc.functional.roc import sorted_ranks
from lightning_tpauc.functional.surrogates import Surrogate, get_surrogate

# Scores of a class that tell enough of a ratio; more would take longer than the steps between two of its evaluations.
_MOST_SORTED, _MOST_PAIRED = 2**16, 2**10
#: How fast the unit of the loss follows the batches: it forgets all but e^-1 of a value in 20 steps.
_UNIT_RATE = 0.05
#: The unit stays above this share of a constant model's loss: below it there is nothing left to learn, and a unit that
#: went on to fall would leave global thresholds where they are, without end in units of the loss.
_LEAST_UNIT = 1e-3
# Pairs whose losses are ranked at once, where nothing but ranking them all will do.
_BLOCK = 1 << 22


def tpauc_objective(
    pos_scores: Tensor,
    neg_scores: Tensor,
    min_tpr: float = 0.5,
    max_fpr: float = 0.5,
    surrogate: str | Surrogate = "hinge",
    margin: float = 1.0,
    scale: float = 1.0,
) -> Tensor:
    r"""Mean surrogate loss over the hardest positives and negatives: the surrogate of 1 - TPAUC.

    .. math::
        F = \frac{1}{k_1 k_2} \sum_{i \in S^\uparrow_+[1, k_1]} \sum_{j \in S^\downarrow_-[1, k_2]} \ell(h_j - h_i),
        \qquad k_1 = \lfloor \theta_0 n_+ \rfloor, \; k_2 = \lfloor \theta_1 n_- \rfloor

    (eq. ``tpauc-o``, normalised) with the :math:`k_1` lowest positives and the :math:`k_2` highest negatives. They are
    chosen by score for every surrogate, so for ``square``, which falls left of -m, this is not the CVaR form.
    Differentiable with respect to all scores, which may come as arrays or lists as well; where ties straddle the border
    of the selection, they share the gradient alike. At equal scores of all examples, as of weights that are zero, any
    choice among them could point uphill.

    Args:
        pos_scores: float tensor ``(n_pos,)``, larger means more positive.
        neg_scores: float tensor ``(n_neg,)``.
        min_tpr: lower bound of the true positive rate, :math:`1 - \theta_0`, in [0, 1).
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1].
        surrogate: name or :class:`~lightning_tpauc.functional.Surrogate`.
        margin: m of the hinge and square surrogates.
        scale: factor inside the logistic surrogate.

    Returns:
        Scalar tensor, at least 0. Time and memory are O(n log n) for all surrogates but ``logistic`` and registered
        ones without a :class:`~lightning_tpauc.functional.PowerForm`, which take :math:`k_1 k_2` evaluations in blocks.
        nan if any score is, selected or not: it may belong to the rectangle.

    Raises:
        ArgumentError: if the rectangle holds no positive or no negative, or an argument is malformed.

    Example:
        >>> pos, neg = torch.tensor([0.0, 1.0]), torch.tensor([0.5, -2.0])
        >>> tpauc_objective(pos, neg, min_tpr=0.5, max_fpr=0.5)  # one pair: 1 + 0.5 - 0
        tensor(1.5000)
    """
    min_tpr, max_fpr = check_rectangle(min_tpr, max_fpr)
    pos_scores, neg_scores = check_scores(pos_scores, "pos_scores"), check_scores(neg_scores, "neg_scores")
    num_pos = _selected(1.0 - min_tpr, pos_scores.shape[0], f"min_tpr={min_tpr}", "positive")
    num_neg = _selected(max_fpr, neg_scores.shape[0], f"max_fpr={max_fpr}", "negative")
    loss = get_surrogate(surrogate, margin, scale)
    lowest, highest = _hardest(pos_scores, num_pos, largest=False), _hardest(neg_scores, num_neg, largest=True)
    # Surrogates are never negative, so the excess over a threshold of 0 is the loss itself.
    value = Pairs(lowest, highest, torch.zeros_like(lowest), loss).weighted_sum(torch.ones_like(lowest))
    # By a factor, since asking for the truth would wait for the device.
    broken = pos_scores.isnan().any() | neg_scores.isnan().any()
    return value / num_pos * torch.where(broken, math.nan, 1.0).to(value.dtype)


@torch.no_grad()
def objective_ratio(
    pos_scores: Tensor,
    neg_scores: Tensor,
    min_tpr: float = 0.5,
    max_fpr: float = 0.5,
    surrogate: str | Surrogate = "hinge",
    margin: float = 1.0,
    scale: float = 1.0,
) -> Tensor:
    r"""The objective F over :math:`\ell(0)`, that of a model that scores all examples alike.

    Near 1 the rectangle is out of reach: there F is smallest for such a model, whatever convex surrogate is taken.

    Arguments and errors are those of :func:`tpauc_objective`.

    Returns:
        Scalar tensor, at least 0; of a class with more than 65,536 scores, or 1,024 where the surrogate can't be
        sorted, evenly spaced quantiles stand for all. nan where the rectangle holds no positive or no negative, and 0
        where :math:`\ell(0) = 0`, since no model is worse than a constant one then.

    Example:
        >>> pos, neg = torch.tensor([0.5, 1.0]), torch.tensor([0.0, -2.0])
        >>> objective_ratio(pos, neg, min_tpr=0.0, max_fpr=1.0, surrogate="hinge", margin=1.0)
        tensor(0.1250)
    """
    pos = check_scores(pos_scores, "pos_scores", allow_empty=True)
    neg = check_scores(neg_scores, "neg_scores", allow_empty=True)
    ratios = objective_ratios(pos, neg, [(min_tpr, max_fpr)], get_surrogate(surrogate, margin, scale))
    return ratios[0].to(common_dtype(pos, neg))


@torch.no_grad()
def objective_ratios(
    pos_scores: Tensor, neg_scores: Tensor, rectangles: Sequence[tuple[float, float]], loss: Surrogate
) -> Tensor:
    """:func:`objective_ratio` in each of several rectangles, for which the scores are sorted once."""
    most = _MOST_SORTED if loss.power is not None else _MOST_PAIRED
    up, down = (in_double(_thinned(scores, most)) for scores in (pos_scores, -neg_scores))
    sizes = [(floor_count(1.0 - low, len(up)), floor_count(high, len(down))) for low, high in rectangles]
    known = [size for size in sizes if all(size)]
    sums = iter(corner_sums(up, down, known, loss) if known else ())
    unknown, at_zero = up.new_tensor(math.nan), loss.value(up.new_zeros(()))
    means = torch.stack([next(sums) / math.prod(size) if all(size) else unknown for size in sizes])
    ratios = torch.where((at_zero > 0) | means.isnan(), means / at_zero, 0.0)
    return torch.where(up.isnan().any() | down.isnan().any(), unknown, ratios)


def _thinned(scores: Tensor, most: int) -> Tensor:
    """So many evenly spaced quantiles, or all scores, in ascending order."""
    every = -(-scores.numel() // most)
    ascending = sorted_ranks(rankable(scores), 0, scores.numel())
    return ascending if every <= 1 else ascending[every // 2 :: every]


def _hardest(scores: Tensor, count: int, largest: bool) -> Tensor:
    """The ``count`` largest or smallest scores; those equal to the last of them share its gradient, nan spoils all."""
    chosen = torch.topk(scores, count, largest=largest, sorted=False).values
    last = chosen.detach().amin() if largest else chosen.detach().amax()
    tied = scores == last
    shared = last + torch.where((tied & last.isfinite()) | scores.isnan(), scores - last, 0.0).sum() / tied.sum()
    return torch.where(chosen == last, shared, chosen)


def _selected(theta: float, n: int, bound: str, kind: str) -> int:
    count = floor_count(theta, n)
    if count < 1:
        raise ArgumentError(
            f"The rectangle with {bound} needs at least {ceil_count(1.0 / theta, 1)} {kind} scores, but got {n}. "
            "Widen the rectangle, or evaluate on more examples."
        )
    return count


# ---------------------------------------------------------------- the unit of the loss


def tail_mean_loss(
    pos_scores: Tensor,
    neg_scores: Tensor,
    max_fpr: float | Tensor = 0.5,
    surrogate: str | Surrogate = "hinge",
    margin: float = 1.0,
    scale: float = 1.0,
    masks: TaskMasks | None = None,
) -> Tensor:
    r"""The mean over all positives of the mean loss over the hardest :math:`\theta_1` share of the negatives.

    .. math:: \frac{1}{n_+} \sum_i \min_s \Bigl( s + \frac{1}{\theta_1 n_-} \sum_j (\ell_{ij} - s)_+ \Bigr)

    Where :math:`\theta_1 n_-` is no whole number, the last of the hardest negatives counts in part. The hardest are the
    highest for a monotone surrogate, and each positive's own for another.

    Args:
        pos_scores: float tensor ``(n_pos,)``.
        neg_scores: float tensor ``(n_neg,)``.
        max_fpr: upper bound of the false positive rate, :math:`\theta_1`, in (0, 1].
        surrogate: name or :class:`~lightning_tpauc.functional.Surrogate`.
        margin: m of the hinge, square and ramp surrogates.
        scale: factor inside the logistic surrogate.
        masks: which scores of K labels are there; scores then have a leading K, and ``max_fpr`` may be a float64 tensor
            ``(K,)``.

    Returns:
        Tensor ``()``, or ``(K,)`` for several labels, without a graph, in the dtype of the scores, at least float32.
        Nothing waits for the device. Time is O(n log n) where sorting evaluates a monotone surrogate; the others take
        all pairs, in blocks.

    Raises:
        ArgumentError: if an argument is malformed.

    Example:
        >>> pos, neg = torch.tensor([0.0, 1.0]), torch.tensor([0.5, -2.0, -0.25])
        >>> tail_mean_loss(pos, neg, max_fpr=0.5)  # 1.5 negatives: (1.5 + 0.75 / 2) / 1.5 and (0.5 + 0) / 1.5
        tensor(0.7917)
    """
    if masks is None:
        _, max_fpr = check_rectangle(0.0, max_fpr)  # type: ignore[arg-type]  # a number, where there is one label
        pos_scores = check_scores(pos_scores, "pos_scores")
        neg_scores = check_scores(neg_scores, "neg_scores")
    loss, pos, neg = get_surrogate(surrogate, margin, scale), in_double(pos_scores), in_double(neg_scores)
    mean = tail_loss(Pairs(pos, neg, torch.zeros_like(pos), loss, masks), max_fpr)
    return mean.to(common_dtype(pos_scores, neg_scores))


@torch.no_grad()
def tail_loss(pairs: Pairs, theta: float | Tensor) -> Tensor:
    """:func:`tail_mean_loss` of pairs that are evaluated already, whatever their thresholds are."""
    found = pairs.tail_mean(theta)
    if found is not None:
        return found
    pos, neg, masks = in_double(pairs.pos), in_double(pairs.neg), pairs.masks
    _, risk = tail_risk(pos, neg, theta, pairs.loss, masks)
    return masked_mean(risk, None if masks is None else masks.pos).to(pairs.pos.dtype)


def tail_risk(
    pos: Tensor, neg: Tensor, theta: float | Tensor, loss: Surrogate, masks: TaskMasks | None = None
) -> tuple[Tensor, Tensor]:
    r"""Each positive's threshold :math:`s_i`, and its mean loss over the hardest share of the negatives.

    The threshold is the :math:`\lceil \theta_1 n_- \rceil`-th largest loss, the mean
    :math:`s_i + \frac{1}{\theta_1 n_-} \sum_j (\ell_{ij} - s_i)_+`; both ``(n_pos,)``.
    """
    share, neg_mask = 1.0, None if masks is None else masks.neg
    if loss.monotone and masks is None:
        # The other negatives exceed no threshold, so their terms are 0.
        num_neg = neg.shape[-1]
        rank = max(1, ceil_count(float(theta), num_neg))
        neg, share = torch.topk(neg, rank, sorted=False).values, rank / num_neg
        s = loss.value(neg.min() - pos)
    elif loss.monotone:  # ranks are not known on the host, so all negatives stay
        border = ranked(neg, theta, neg_mask).clamp_min(torch.finfo(neg.dtype).min)
        s = loss.value(border.unsqueeze(-1) - pos)
    else:
        s = _own_thresholds(pos, neg, theta, loss, neg_mask)
    return s, s + Pairs(pos, neg, s, loss, masks).excess * share / column(theta)


def _own_thresholds(pos: Tensor, neg: Tensor, theta: float | Tensor, loss: Surrogate, mask: Tensor | None) -> Tensor:
    """The thresholds where each positive has its own hardest negatives."""
    if mask is not None:
        pairs = loss.value(neg.unsqueeze(-2) - pos.unsqueeze(-1))
        return ranked(pairs, column(theta), mask.unsqueeze(-2).expand_as(pairs)).nan_to_num(neginf=0.0)
    rank = max(1, ceil_count(float(theta), neg.shape[-1]))
    rows = torch.split(pos, max(1, _BLOCK // neg.shape[-1]))
    return torch.cat([torch.topk(loss.value(neg - row.unsqueeze(1)), rank).values[:, -1] for row in rows])


def in_double(scores: Tensor) -> Tensor:
    """``scores`` in float64 where the device has it."""
    return scores.to(widest_float(scores.device))


def loss_unit_step(unit: Tensor, batch_loss: Tensor, constant_loss: float) -> Tensor:
    r"""The running mean :math:`L \leftarrow L + 0.05\,(L_B - L)`, in which step sizes without a unit are measured.

    :math:`\alpha` is the inverse of a loss, and :math:`\beta` and :math:`\beta'` are losses: :math:`\alpha / L`,
    :math:`\beta L` and :math:`\beta' L` suit raw scores, probabilities and every margin. :math:`L_B` is the batch's
    :func:`~lightning_tpauc.functional.tail_mean_loss`. L, 0 before the first step, is at first the batch's own, and at
    least a thousandth of :math:`\ell(0)`, the loss of a constant model.
    """
    updated = torch.where(unit > 0, torch.lerp(unit, batch_loss, _UNIT_RATE), batch_loss)
    return updated.clamp_min(max(_LEAST_UNIT * constant_loss, torch.finfo(updated.dtype).tiny ** 0.5))


# ---------------------------------------------------------------- the lines of the algorithm


def per_positive_risk(thresholds: Tensor, total_excess: Tensor, tail: float | Tensor) -> Tensor:
    r"""The CVaR of each positive, where :math:`\theta_1|B|` is the ``tail``.

    .. math:: g_i(w, s_i; B) = s_i + \frac{1}{\theta_1|B|}\sum_j (\ell_{ij} - s_i)_+
    """
    return add_scaled(thresholds, total_excess, 1.0 / tail)


def dual_weight_step(
    dual_weights: Tensor, gap: Tensor, alpha: float, theta0: float | Tensor, unit: float | Tensor = 1.0
) -> Tensor:
    r"""Line 1, (eqn:y) and (eqn:yy), with :math:`\alpha` over the ``unit`` of the loss, and the ``gap`` g_i - s'.

    .. math:: y_i \leftarrow \Pi_{[0,1]}(y_i + \alpha (g_i - s') / \theta_0)
    """
    return add_scaled(dual_weights, gap, alpha / theta0, unit).clamp_(0.0, 1.0)


def threshold_gradient(
    dual_weights: Tensor,
    active: Tensor,
    theta1: float | Tensor,
    offset: Tensor | None = None,
    gamma: float | Tensor = math.inf,
) -> Tensor:
    r"""The bracket of line 2, (eqn:s) and (eqn:ss), with the new :math:`y_i`; without an ``offset`` that of STACO1.

    .. math:: s_i \leftarrow s_i - \frac{\beta}{\theta_0}\Bigl( y_i \bigl(1 - \tfrac{|\{j: \ell_{ij} > s_i\}|}
        {\theta_1 |\tilde B|}\bigr) + \tfrac{1}{\gamma}(s_i - s_{0,i}) \Bigr)

    ``offset`` is :math:`s_i - s_{0,i}`. The paper's bracket divides the proximal term by :math:`\theta_0` as well; so
    does line 2 here.
    """
    if isinstance(theta1, Tensor):
        gradient = dual_weights - dual_weights * active / column(theta1)
    else:  # the share and not the number of active pairs: where it is theta_1, nothing is left
        gradient = torch.addcmul(dual_weights, dual_weights, active, value=-1.0 / theta1)
    return gradient if offset is None else gradient + offset / column(gamma)


def pair_weights(
    dual_weights: Tensor,
    theta0: float | Tensor,
    tail: float | Tensor,
    unit: float | Tensor = 1.0,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Line 3, what a pair's excess loss counts for, per ``unit``: :math:`y_i / (S \theta_0 \theta_1 |\tilde B|)`."""
    factor = 1.0 / (number(dual_weights, mask) * theta0 * tail)
    return add_scaled(constant((0.0,), dual_weights.dtype, dual_weights.device), dual_weights, factor, unit)


def minmax_value(
    weights: Tensor, gap: Tensor, global_threshold: Tensor | None, tail: float | Tensor, unit: float | Tensor = 1.0
) -> Tensor:
    r"""Line 3, the function whose gradient (eqn:w) and (eqn:ww) follow, with the new :math:`y_i` and the old s and s'.

    .. math:: \frac{1}{S}\sum_i y_i \frac{g_i(w, s_i; \tilde B) - s'}{\theta_0} + s'

    in the ``unit`` of the loss, by :func:`pair_weights` and the ``gap`` :math:`g_i - s'`. This is the minibatch value
    of the min-max problem (eq:tpauc_minmax), not the objective F: it need not fall while training makes progress.
    """
    total = dot(weights, gap)
    return total * tail if global_threshold is None else add_scaled(global_threshold / unit, total, tail)


def global_threshold_step(
    global_threshold: Tensor,
    mean_dual_weight: Tensor,
    beta_prime: float,
    theta0: float | Tensor,
    unit: float | Tensor = 1.0,
) -> Tensor:
    r"""Line 4, (eqn:sp), with the new y: :math:`s' \leftarrow s' - \beta'(1 - \frac{1}{\theta_0 S}\sum_i y_i)`.

    :math:`\beta'` is measured in the ``unit`` of the loss.
    """
    excess = mean_dual_weight - theta0
    if isinstance(theta0, Tensor) or not isinstance(unit, Tensor):
        return global_threshold + excess * (beta_prime / theta0 * unit)
    return torch.addcmul(global_threshold, excess, unit, value=beta_prime / theta0)
