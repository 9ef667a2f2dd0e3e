"""A plain training loop: linear model, torch's SGD, no Lightning."""

import torch

from tests.reference.linear import make_problem

STEPS = 100


class Loop:
    """Plays the module's role for an algorithm on the batches of a small problem."""

    def __init__(self, algorithm, seed=0, lr=0.1, activation=None, dtype=torch.float64, sizes=(5, 7, 6), **sgd):
        self.positives, self.batches, self.start = make_problem(seed, STEPS, sizes=sizes)
        self.pos_x = torch.tensor(self.positives, dtype=dtype)
        self.w = torch.tensor(self.start, dtype=dtype, requires_grad=True)
        self.anchor = self.w.detach().clone()
        self.optimizer = torch.optim.SGD([self.w], lr=lr, **sgd)
        self.algorithm = algorithm
        self.activation = activation or (lambda h: h)
        self.iterates = []
        algorithm.setup(len(self.positives), dtype=dtype)

    def tensors(self, batch):
        """Inputs of the positives, negatives and dual negatives, and the index."""
        index, neg, dual = batch
        index = torch.tensor(index, dtype=torch.int64)
        neg_x, dual_x = (torch.tensor(x, dtype=self.pos_x.dtype).reshape(-1, self.w.numel()) for x in (neg, dual))
        return self.pos_x[index], neg_x, dual_x, index

    def scores(self, x, w=None):
        return self.activation(x @ (self.w if w is None else w))

    def step(self, batch):
        """One step without previous weights; returns the loss before it."""
        pos, neg, dual, index = self.tensors(batch)
        self.optimizer.zero_grad()
        loss = self.algorithm(self.scores(pos), self.scores(neg), self.scores(dual), index)
        loss.backward()
        return self.finish(loss)

    def finish(self, loss):
        """The proximal term, the optimizer's step, and the record of the iterate."""
        with torch.no_grad():
            self.w.grad += self.algorithm.proximal_coefficient * (self.w - self.anchor)
        self.optimizer.step()
        self.iterates.append(self.w.detach().clone())
        return loss.detach()

    def finish_stage(self):
        """What a stage callback does with the weights and the algorithm."""
        mean = torch.stack(self.iterates).mean(0)
        self.iterates = []
        self.anchor = mean
        if self.algorithm.stage_iterate == "average":
            with torch.no_grad():
                self.w.copy_(mean)
        self.algorithm.finish_stage()
        self.algorithm.restart()


def random_scores(seed=0, num_pos=6, num_neg=8):
    """Leaf tensors of positive and negative scores in float64."""
    generator = torch.Generator().manual_seed(seed)
    pos = torch.randn(num_pos, generator=generator, dtype=torch.float64) + 0.3
    neg = torch.randn(num_neg, generator=generator, dtype=torch.float64) - 0.3
    return pos.requires_grad_(), neg.requires_grad_()
