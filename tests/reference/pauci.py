"""PAUCI from the formula of its saddle function: every derivative is autograd's, every variable has its own name."""

import torch

MINIMISED = ("w", "a", "b", "s_p", "s_n", "la", "lb")
START = {"a": 0.5, "b": 0.5, "s_p": 0.5, "s_n": 0.5, "la": 0.0, "lb": 0.0, "g": 1.0}


def saddle(x, pos_x, neg_x, theta0, theta1, kappa, width):
    """L at the point x, a dict; scores are the sigmoid of a linear model."""

    def r(z):
        if width is not None:  # Huber's function, piece by piece
            return torch.where(z < -width, 0 * z, torch.where(z > width, z, (z + width) ** 2 / (4 * width)))
        return torch.log(1 + torch.exp(kappa * z)) / kappa

    hp, hn = torch.sigmoid(pos_x @ x["w"]), torch.sigmoid(neg_x @ x["w"])
    pos = r((hp - x["a"]) ** 2 - 2 * (1 + x["g"]) * hp - x["s_p"]).mean() / theta0
    neg = r((hn - x["b"]) ** 2 + 2 * (1 + x["g"]) * hn - x["s_n"]).mean() / theta1
    bounds = -x["lb"] * (x["b"] - 1 - x["g"]) + x["la"] * (x["a"] + x["g"])
    return x["s_p"] + pos + x["s_n"] + neg - x["g"] ** 2 + bounds


def gradients(x, *args):
    leaves = {name: value.clone().requires_grad_() for name, value in x.items()}
    grads = torch.autograd.grad(saddle(leaves, *args), list(leaves.values()))
    return dict(zip(leaves, grads, strict=True))


def project(name, value, x):
    low, high = {
        "a": (0, 1),
        "b": (0, 1),
        "s_p": (-4, 1),
        "s_n": (0, 5),
        "la": (0, None),
        "lb": (0, None),
        "w": (None, None),
        "g": (max(-x["a"].item(), x["b"].item() - 1), 1),
    }[name]
    return value if low is None else value.clamp(low, high)


class Reference:
    def __init__(self, w, theta0, theta1, nu, rho, k, m, c1, c2, kappa=2.0, width=None):
        self.x = {"w": torch.tensor(w, dtype=torch.float64)}
        self.x.update({name: torch.tensor(v, dtype=torch.float64) for name, v in START.items()})
        self.args = (theta0, theta1, kappa, width)
        self.nu, self.rho, self.k, self.m, self.c1, self.c2 = nu, rho, k, m, c1, c2
        self.t, self.x_old, self.v = 0, None, None

    def eta(self, t):
        return min(1.0, self.k / (self.m + t) ** (1 / 3))

    def step(self, pos_x, neg_x):
        """Estimate at the new point on this batch, then the move; two lines of the method."""
        grad = gradients(self.x, pos_x, neg_x, *self.args)
        if self.v is None:
            self.v = grad
        else:
            old = gradients(self.x_old, pos_x, neg_x, *self.args)
            for name in self.x:
                c = self.c2 if name == "g" else self.c1
                keep = 1 - min(1.0, c * self.eta(self.t - 1) ** 2)
                self.v[name] = grad[name] + keep * (self.v[name] - old[name])
        new = {}
        for name, value in self.x.items():
            moved = value + self.rho * self.v[name] if name == "g" else value - self.nu * self.v[name]
            target = project(name, moved, self.x)
            new[name] = value + self.eta(self.t) * (target - value)
        self.x_old, self.x = self.x, new
        self.t += 1
