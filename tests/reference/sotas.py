"""SOTAs with u and v as they are written, not as logarithms: for losses that do not overflow."""

import math

from tests.reference.linear import descend, mean, score, weight_gradient
from tests.reference.pairwise import LOSSES
from tests.reference.units import One


def soft_objective(pos, neg, name, lam, lam_prime, margin=0.5, scale=1.0):
    """F of given scores."""
    inner = [mean([math.exp(LOSSES[name](hj - hi, margin, scale)[0] / lam) for hj in neg]) for hi in pos]
    return lam_prime * math.log(mean([u ** (lam / lam_prime) for u in inner]))


class Reference:
    def __init__(self, w, num_pos, eta, name, lam, lam_prime, g0, g1, margin=0.5, scale=1.0, unit=None):
        self.unit = unit or One()
        self.w, self.eta = w, eta
        self.name, self.lam, self.lam_prime, self.margin, self.scale = name, lam, lam_prime, margin, scale
        self.g0, self.g1 = g0, g1
        self.u = [0.0] * num_pos
        self.v = 0.0

    def step(self, pos_x, neg_x, index):
        ratio = self.lam / self.lam_prime
        hp, hn = [score(self.w, x) for x in pos_x], [score(self.w, x) for x in neg_x]
        pairs = [[LOSSES[self.name](hj - hi, self.margin, self.scale) for hj in hn] for hi in hp]
        unit = self.unit.step([[value for value, _ in row] for row in pairs])
        lam = self.lam * unit
        for row, i in zip(pairs, index, strict=True):
            self.u[i] = (1 - self.g0) * self.u[i] + self.g0 * mean([math.exp(value / lam) for value, _ in row])
        self.v = (1 - self.g1) * self.v + self.g1 * mean([self.u[i] ** ratio for i in index])
        loss, pos_grad, neg_grad = 0.0, [0.0] * len(hp), [0.0] * len(hn)
        for a, i in enumerate(index):
            for b, (value, slope) in enumerate(pairs[a]):
                p = self.u[i] ** (ratio - 1) * math.exp(value / lam) / self.v / (len(hp) * len(hn)) / unit
                loss += p * value
                pos_grad[a] -= p * slope
                neg_grad[b] += p * slope
        self.w = descend(self.w, weight_gradient(len(self.w), [*pos_x, *neg_x], pos_grad + neg_grad), self.eta)
        return loss
