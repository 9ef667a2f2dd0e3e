"""Pairwise sums as double loops over Python floats, written from the formulas of the paper."""

import math


def squared_hinge(t, margin, scale):
    u = margin + t
    return (u * u, 2 * u) if u > 0 else (0.0, 0.0)


def hinge(t, margin, scale):
    return (margin + t, 1.0) if margin + t > 0 else (0.0, 0.0)


def square(t, margin, scale):
    return (margin + t) ** 2, 2 * (margin + t)


def logistic(t, margin, scale):
    x = scale * t
    value = x + math.log1p(math.exp(-x)) if x > 0 else math.log1p(math.exp(x))
    return value, scale / (1 + math.exp(-x)) if x > 0 else scale * math.exp(x) / (1 + math.exp(x))


def ramp(t, margin, scale):
    if t <= -margin:
        return 0.0, 0.0
    return ((margin + t) / margin, 1 / margin) if t <= 0 else (1.0, 0.0)


def smooth_ramp(t, margin, scale):
    u = t / margin
    if u <= -1 or u >= 1:
        return (0.0 if u < 0 else 1.0), 0.0
    value = (1 + u) ** 2 / 2 if u < 0 else 1 - (1 - u) ** 2 / 2
    return value, (1 - abs(u)) / margin


#: name -> function of (t, margin, scale) that returns (l(t), l'(t))
LOSSES = {
    "squared_hinge": squared_hinge,
    "hinge": hinge,
    "square": square,
    "logistic": logistic,
    "ramp": ramp,
    "smooth_ramp": smooth_ramp,
}


def loss_matrix(pos, neg, name, margin=0.5, scale=1.0):
    """l_ij as a list of rows, one per positive."""
    return [[LOSSES[name](hj - hi, margin, scale)[0] for hj in neg] for hi in pos]


def pairwise_loops(pos, neg, s, y, name, margin=0.5, scale=1.0):
    """Excess and active share of every positive, gradients of sum_i y_i excess_i by h_i and by h_j."""
    num_neg = len(neg)
    excess, active = [0.0] * len(pos), [0.0] * len(pos)
    pos_grad, neg_grad = [0.0] * len(pos), [0.0] * num_neg
    for i, hi in enumerate(pos):
        for j, hj in enumerate(neg):
            value, slope = LOSSES[name](hj - hi, margin, scale)
            if value > s[i]:
                excess[i] += (value - s[i]) / num_neg
                active[i] += 1 / num_neg
                pos_grad[i] -= y[i] * slope / num_neg
                neg_grad[j] += y[i] * slope / num_neg
    return excess, active, pos_grad, neg_grad
