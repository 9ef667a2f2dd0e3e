"""SOTA: STACO2's y, w and s', a full-vector proximal step on s, averages over all iterates of a stage."""

from tests.reference.linear import descend, mean, score, weight_gradient
from tests.reference.pairwise import LOSSES, loss_matrix
from tests.reference.units import One


class Reference:
    def __init__(
        self, w, num_pos, eta, alpha, beta, beta_prime, gamma, theta0, theta1, start, name, margin=0.5, unit=None
    ):
        self.unit = unit or One()
        self.w, self.s, self.s_prime = list(w), [start] * num_pos, start
        self.y = [1.0] * num_pos
        self.eta, self.alpha, self.beta, self.beta_prime, self.gamma = eta, alpha, beta, beta_prime, gamma
        self.theta0, self.theta1, self.name, self.margin = theta0, theta1, name, margin
        self.begin_stage()

    def begin_stage(self):
        self.w0, self.s0, self.y = list(self.w), list(self.s), [1.0] * len(self.s)
        self.iterates = []

    def step(self, pos_x, neg_x, dual_x, index):
        hp = [score(self.w, x) for x in pos_x]
        hn, hd = [score(self.w, x) for x in neg_x], [score(self.w, x) for x in dual_x]
        theta0, theta1 = self.theta0, self.theta1
        unit = self.unit.step(loss_matrix(hp, hd, self.name, self.margin))
        for row, i in zip(loss_matrix(hp, hd, self.name, self.margin), index, strict=True):
            risk = self.s[i] + mean([max(v - self.s[i], 0.0) for v in row]) / theta1
            self.y[i] = min(1.0, max(0.0, self.y[i] + self.alpha / unit * (risk - self.s_prime) / theta0))
        sampled, num_pos = len(index), len(self.s)
        big_g = [0.0] * num_pos
        pos_grad, neg_grad = [0.0] * len(hp), [0.0] * len(hn)
        for a, i in enumerate(index):
            active = 0
            for b, hj in enumerate(hn):
                value, slope = LOSSES[self.name](hj - hp[a], self.margin, 1.0)
                if value > self.s[i]:
                    active += 1
                    share = self.y[i] * slope / (theta0 * theta1 * sampled * len(hn)) / self.unit.of_loss
                    pos_grad[a] -= share
                    neg_grad[b] += share
            derivative = self.y[i] / theta0 * (1 - active / len(hn) / theta1) / num_pos
            big_g[i] = num_pos / sampled * derivative
        # the minimiser of <G, z> + |z - s0|^2 / (2 gamma n) + |z - s|^2 / (2 beta), coordinate by coordinate
        a, b = 1 / (self.gamma * unit * num_pos), 1 / (self.beta * unit)
        self.s = [(a * s0 + b * s - g) / (a + b) for s, s0, g in zip(self.s, self.s0, big_g, strict=True)]
        gradient = weight_gradient(len(self.w), [*pos_x, *neg_x], pos_grad + neg_grad)
        gradient = [g + (w - w0) / (self.gamma * theta0) for g, w, w0 in zip(gradient, self.w, self.w0, strict=True)]
        self.w = descend(self.w, gradient, self.eta)
        self.s_prime -= self.beta_prime * unit * (1 - mean([self.y[i] for i in index]) / theta0)
        self.iterates.append((list(self.w), list(self.s), self.s_prime))

    def finish_stage(self):
        ws, ss, s_primes = zip(*self.iterates, strict=True)
        self.w = [mean([w[k] for w in ws]) for k in range(len(self.w))]
        self.s = [mean([s[i] for s in ss]) for i in range(len(self.s))]
        self.s_prime = mean(s_primes)
        self.begin_stage()
