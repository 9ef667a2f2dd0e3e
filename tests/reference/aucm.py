"""PESG on the AUC margin loss, all variables in one list v = (w..., a, b)."""

from tests.reference.linear import mean, score


class Reference:
    """v moves with momentum, proximal term and weight decay; c by projected ascent with the new a and b."""

    def __init__(self, w, eta, margin, lambda0, momentum, wd):
        self.v = [*w, 0.0, 0.0]
        self.c = 0.0
        self.eta, self.margin, self.lambda0, self.momentum, self.wd = eta, margin, lambda0, momentum, wd
        self.v_ref = list(self.v)
        self.velocity = [0.0] * len(self.v)
        self.iterates = []

    def loss(self, v, c, pos_x, neg_x):
        w, a, b = v[:-2], v[-2], v[-1]
        hp, hn = [score(w, x) for x in pos_x], [score(w, x) for x in neg_x]
        return (
            mean([(h - a) ** 2 for h in hp])
            + mean([(h - b) ** 2 for h in hn])
            + 2 * c * (self.margin + mean(hn) - mean(hp))
            - c**2
        )

    def step(self, pos_x, neg_x):
        v, c = self.v, self.c
        w, a, b = v[:-2], v[-2], v[-1]
        grad = [0.0] * len(v)
        for x in pos_x:
            h = score(w, x)
            for k, xk in enumerate(x):
                grad[k] += (2 * (h - a) - 2 * c) * xk / len(pos_x)
            grad[-2] += -2 * (h - a) / len(pos_x)
        for x in neg_x:
            h = score(w, x)
            for k, xk in enumerate(x):
                grad[k] += (2 * (h - b) + 2 * c) * xk / len(neg_x)
            grad[-1] += -2 * (h - b) / len(neg_x)
        loss = self.loss(v, c, pos_x, neg_x)
        for k in range(len(v)):
            bracket = grad[k] + self.lambda0 * (v[k] - self.v_ref[k]) + self.wd * v[k]
            self.velocity[k] = self.momentum * self.velocity[k] + bracket
        self.v = [vk - self.eta * d for vk, d in zip(v, self.velocity, strict=True)]
        self.c = max(0.0, c + self.eta * (2 * (self.margin + self.v[-1] - self.v[-2]) - 2 * c))
        self.iterates.append(list(self.v))
        return loss

    def finish_stage(self):
        self.v_ref = [mean([v[k] for v in self.iterates]) for k in range(len(self.v))]
        self.iterates = []
