"""STACO1 and STACO2 as printed in the paper, for a linear model, in loops over plain Python floats."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from tests.reference.pairwise import ramp, smooth_ramp

SURROGATES = {
    "squared_hinge": (lambda t, m: max(m + t, 0.0) ** 2, lambda t, m: 2 * max(m + t, 0.0)),
    "hinge": (lambda t, m: max(m + t, 0.0), lambda t, m: 1.0 if m + t > 0 else 0.0),
    "square": (lambda t, m: (m + t) ** 2, lambda t, m: 2 * (m + t)),
    "logistic": (lambda t, m: math.log1p(math.exp(t)), lambda t, m: 1 / (1 + math.exp(-t))),
    # piecewise: rounding must not carry a loss above its maximum, which decides what is active
    "ramp": (lambda t, m: ramp(t, m, 1.0)[0], lambda t, m: ramp(t, m, 1.0)[1]),
    "smooth_ramp": (lambda t, m: smooth_ramp(t, m, 1.0)[0], lambda t, m: smooth_ramp(t, m, 1.0)[1]),
}


@dataclass
class Settings:
    theta0: float
    theta1: float
    margin: float
    surrogate: str
    alpha: float
    beta: float
    beta_prime: float
    eta: float
    gamma: float = math.inf
    weight_decay: float = 0.0
    in_units_of_the_loss: bool = False


@dataclass
class State:
    w: list[float]
    y: list[float]
    s: list[float]
    s_prime: float
    w_sum: list[float] = field(default_factory=list)
    s_sum: list[float] = field(default_factory=list)
    s_prime_sum: float = 0.0
    steps: int = 0
    unit: float = 0.0


def tail_mean(losses, theta1):
    """Mean of the largest theta1 share of the losses; the last one counts in part."""
    share = theta1 * len(losses)
    weights = [min(1.0, max(0.0, share - k)) for k in range(len(losses))]
    return sum(weight * loss for weight, loss in zip(weights, sorted(losses, reverse=True), strict=True)) / share


def dot(a, b):
    return sum(p * q for p, q in zip(a, b, strict=True))


def begin_stage(state: State) -> tuple[list[float], list[float]]:
    """Anchors (w0, s0), and empty sums."""
    state.w_sum, state.s_sum, state.s_prime_sum, state.steps = [0.0] * len(state.w), [0.0] * len(state.s), 0.0, 0
    return list(state.w), list(state.s)


def step(state: State, anchors, positives, negatives, dual_negatives, index, p: Settings, scale: float = 1.0) -> None:
    """One iteration k of stage t; every line as in Algorithm 2 (gamma = inf: Algorithm 1)."""
    loss, slope = SURROGATES[p.surrogate]
    w0, s0 = anchors
    h_pos = [dot(state.w, x) for x in positives]
    h_neg = [dot(state.w, x) for x in negatives]
    h_dual = [dot(state.w, x) for x in dual_negatives]
    size = len(index)
    unit = of_loss = 1.0
    if p.in_units_of_the_loss:
        batch = sum(tail_mean([loss(h - h_i, p.margin) for h in h_dual], p.theta1) for h_i in h_pos) / size
        unit = state.unit = batch if state.unit == 0.0 else state.unit + 0.05 * (batch - state.unit)
        of_loss = max(unit, batch)

    new_y, new_s = {}, {}
    gradient = [0.0] * len(state.w)
    for k, i in enumerate(index):
        s_i = state.s[i]
        # (eqn:yy), on B
        g = sum(s_i + max(loss(h - h_pos[k], p.margin) - s_i, 0.0) / p.theta1 for h in h_dual) / len(h_dual)
        new_y[i] = min(1.0, max(0.0, state.y[i] + scale * p.alpha / unit * (g - state.s_prime) / p.theta0))
        # (eqn:ss), on B~, with the old s_i inside
        dg_ds = sum(1.0 - (loss(h - h_pos[k], p.margin) > s_i) / p.theta1 for h in h_neg) / len(h_neg)
        bracket = new_y[i] * dg_ds + (s_i - s0[i]) / (p.gamma * unit)
        new_s[i] = s_i - scale * p.beta * unit / p.theta0 * bracket
        # (eqn:ww), the data part
        for j, h in enumerate(h_neg):
            if loss(h - h_pos[k], p.margin) > s_i:
                weight = new_y[i] * slope(h - h_pos[k], p.margin) / (p.theta1 * len(h_neg) * size) / of_loss
                for d in range(len(gradient)):
                    gradient[d] += weight * (negatives[j][d] - positives[k][d])
    for d in range(len(gradient)):
        bracket = gradient[d] + (state.w[d] - w0[d]) / p.gamma
        gradient[d] = bracket / p.theta0 + p.weight_decay * state.w[d]
    state.w = [value - scale * p.eta * g for value, g in zip(state.w, gradient, strict=True)]
    # (eqn:ssp)
    state.s_prime -= scale * p.beta_prime * unit * (1.0 - sum(new_y.values()) / (p.theta0 * size))
    for i in index:
        state.y[i], state.s[i] = new_y[i], new_s[i]
    state.w_sum = [a + b for a, b in zip(state.w_sum, state.w, strict=True)]
    state.s_sum = [a + b for a, b in zip(state.s_sum, state.s, strict=True)]
    state.s_prime_sum += state.s_prime
    state.steps += 1


def averages(state: State):
    """(w-bar, s-bar, s'-bar) over the stage's iterates."""
    k = state.steps
    return [v / k for v in state.w_sum], [v / k for v in state.s_sum], state.s_prime_sum / k
