"""A linear model, its data and plain gradient steps over Python floats."""

import math
import random


def make_problem(seed, steps, num_pos_total=12, dim=3, sizes=(5, 7, 6)):
    """Inputs of all positives, and per step: index, negatives and dual negatives; S positives without repetition."""
    rng = random.Random(seed)  # noqa: S311 - test data
    num_pos, num_neg, num_dual = sizes

    def point(shift):
        return [rng.gauss(shift, 1.0) for _ in range(dim)]

    positives = [point(0.3) for _ in range(num_pos_total)]
    batches = [
        (
            rng.sample(range(num_pos_total), num_pos),
            [point(-0.3) for _ in range(num_neg)],
            [point(-0.3) for _ in range(num_dual)],
        )
        for _ in range(steps)
    ]
    weights = [rng.gauss(0.0, 0.2) for _ in range(dim)]
    return positives, batches, weights


def score(w, x):
    """h(x)."""
    return math.fsum(a * b for a, b in zip(w, x, strict=True))


def weight_gradient(dim, xs, score_grads):
    """Chain rule: sum over examples of dF/dh times dh/dw."""
    return [math.fsum(g * x[k] for g, x in zip(score_grads, xs, strict=True)) for k in range(dim)]


def descend(w, gradient, eta):
    """One step of gradient descent."""
    return [a - eta * g for a, g in zip(w, gradient, strict=True)]


def mean(values):
    return math.fsum(values) / len(values)
