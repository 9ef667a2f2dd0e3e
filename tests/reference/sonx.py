"""SONX by loops; the whole vector s of the previous step is kept."""

from tests.reference.linear import descend, mean, score, weight_gradient
from tests.reference.pairwise import LOSSES, loss_matrix
from tests.reference.units import One


class Reference:
    def __init__(
        self, w, num_pos, eta, tau, gamma, beta, beta_prime, theta0, theta1, start, name, margin=0.5, unit=None
    ):
        self.unit = unit or One()
        self.w, self.w_previous = list(w), list(w)
        self.s, self.s_previous = [start] * num_pos, [start] * num_pos
        self.s_prime, self.u = start, [None] * num_pos
        self.eta, self.tau, self.gamma, self.beta, self.beta_prime = eta, tau, gamma, beta, beta_prime
        self.theta0, self.theta1, self.name, self.margin = theta0, theta1, name, margin

    def risks(self, w, s, pos_x, neg_x, index):
        rows = loss_matrix([score(w, x) for x in pos_x], [score(w, x) for x in neg_x], self.name, self.margin)
        return [
            s[i] + mean([max(v - s[i], 0.0) for v in row]) / self.theta1 for row, i in zip(rows, index, strict=True)
        ]

    def step(self, pos_x, neg_x, index):
        hp, hn = [score(self.w, x) for x in pos_x], [score(self.w, x) for x in neg_x]
        unit = self.unit.step(loss_matrix(hp, hn, self.name, self.margin))
        psi = self.risks(self.w, self.s, pos_x, neg_x, index)
        psi_previous = self.risks(self.w_previous, self.s_previous, pos_x, neg_x, index)
        s_new, q = list(self.s), []
        pos_grad, neg_grad = [0.0] * len(hp), [0.0] * len(hn)
        for a, i in enumerate(index):
            u = psi[a] if self.u[i] is None else self.u[i]
            q.append(1 / self.theta0 if u > self.s_prime else 0.0)
            self.u[i] = (1 - self.tau) * u + self.tau * psi[a] + self.gamma * (psi[a] - psi_previous[a])
            active = 0
            for b, hj in enumerate(hn):
                value, slope = LOSSES[self.name](hj - hp[a], self.margin, 1.0)
                if value > self.s[i]:
                    active += 1
                    share = q[a] * slope / (self.theta1 * len(hn) * len(index)) / unit
                    pos_grad[a] -= share
                    neg_grad[b] += share
            s_new[i] = self.s[i] - self.beta * unit * q[a] * (1 - active / len(hn) / self.theta1) / len(index)
        self.s_previous, self.s = self.s, s_new
        self.s_prime -= self.beta_prime * unit * (1 - mean(q))
        self.w_previous = self.w
        self.w = descend(self.w, weight_gradient(len(self.w), [*pos_x, *neg_x], pos_grad + neg_grad), self.eta)
