"""STACO with tracked duals for a linear model, in loops over plain Python floats: every pair by its ranks."""

from __future__ import annotations

import math
from fractions import Fraction

from tests.reference.staco import SURROGATES, dot, tail_mean


def ceiling(share: str, count: int) -> int:
    """The smallest whole number of at least share times count, for a share as it is written."""
    return max(1, math.ceil(Fraction(share) * count))


class Tracked:
    """Borders c and p as running means over batches, weights w by gradient descent.

    ``theta0`` and ``theta1`` are strings, so that nothing is rounded.
    """

    def __init__(self, theta0, theta1, margin, surrogate, eta, gamma=math.inf, in_units_of_the_loss=False, dim=4):
        self.theta0, self.theta1, self.margin = theta0, theta1, margin
        self.loss, self.slope = SURROGATES[surrogate]
        self.eta, self.gamma, self.in_units = eta, gamma, in_units_of_the_loss
        self.w, self.anchor, self.iterates = [0.0] * dim, [0.0] * dim, []
        self.borders = None
        self.unit = 0.0

    def step(self, positives, negatives, dual_negatives):
        """One step; returns the loss before it."""
        pos, neg = [dot(self.w, x) for x in positives], [dot(self.w, x) for x in negatives]
        dual = [dot(self.w, x) for x in dual_negatives]
        theta0, theta1 = float(Fraction(self.theta0)), float(Fraction(self.theta1))
        batch = (
            sorted(dual, reverse=True)[ceiling(self.theta1, len(dual)) - 1],
            sorted(pos)[ceiling(self.theta0, len(pos)) - 1],
        )
        old = self.borders or batch
        self.borders = tuple(a + 0.1 * (b - a) for a, b in zip(old, batch, strict=True))
        of_loss = 1.0
        if self.in_units:
            hardest = sum(tail_mean([self.loss(h - x, self.margin) for h in dual], theta1) for x in pos) / len(pos)
            self.unit = hardest if self.unit == 0.0 else self.unit + 0.05 * (hardest - self.unit)
            of_loss = max(self.unit, hardest)
        c, p = self.borders
        tied = sum(x == p for x in pos)
        share = min(1.0, max(0.0, (theta0 * len(pos) - sum(x < p for x in pos)) / tied)) if tied else 0.0
        value, gradient = 0.0, [0.0] * len(self.w)
        for i, x in enumerate(pos):
            y = share if x == p else float(x < p)
            s = self.loss(c - x, self.margin)
            value += y * s / (len(pos) * theta0)
            for j, h in enumerate(neg):
                if h >= c:
                    weight = y / (len(pos) * len(neg) * theta0 * theta1)
                    value += weight * (self.loss(h - x, self.margin) - s)
                    for d in range(len(gradient)):
                        difference = negatives[j][d] - positives[i][d]
                        gradient[d] += weight * self.slope(h - x, self.margin) * difference / of_loss
        for d in range(len(gradient)):
            gradient[d] += (self.w[d] - self.anchor[d]) / (self.gamma * theta0)
        self.w = [w - self.eta * g for w, g in zip(self.w, gradient, strict=True)]
        self.iterates.append(list(self.w))
        return value / of_loss

    def finish_stage(self):
        """The weights' average is where the next stage begins, with borders of its own."""
        count = len(self.iterates)
        self.w = self.anchor = [sum(w[d] for w in self.iterates) / count for d in range(len(self.w))]
        self.iterates, self.borders = [], None
