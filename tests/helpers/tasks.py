"""A tiny problem with three labels: batches drawn by hand, the same batches of one label alone, and arrays."""

import torch
from torch import nn

from lightning_tpauc.data.batch import EvalBatch, PosNegBatch
from lightning_tpauc.functional.pairwise import TaskMasks

SIZES, DIM = (6, 5, 8), 4
NAMES = ("liver", "lung", "skin")
K, S, B = len(SIZES), 6, 9


class Heads(nn.Module):
    """A linear score of each label."""

    def __init__(self, num_labels=K, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(0.3 * torch.randn(num_labels, DIM, generator=generator, dtype=torch.float64))

    def forward(self, inputs):
        return inputs.double() @ self.weight.T


class OneHead(nn.Module):
    """One of the scores of :class:`Heads`, alone."""

    def __init__(self, heads, label):
        super().__init__()
        self.weight = nn.Parameter(heads.weight[label].detach().clone())

    def forward(self, inputs):
        return inputs @ self.weight


def make_batches(steps, seed=1, dual=0, uniform=False, absent=False):
    """Batches in which every label has positives and negatives, and sees all of its positives every few steps.

    Args:
        steps: how many.
        seed: of the numbers.
        dual: size of the second part of negatives.
        uniform: all examples are in both parts.
        absent: now and then a label has no positive.
    """
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for step in range(steps):
        orders = [torch.randperm(n, generator=generator)[:S] for n in SIZES]
        index = torch.stack([torch.cat([o, o.new_zeros(S - len(o))]) for o in orders])
        pos = torch.stack([torch.arange(S) < len(o) for o in orders]) & (torch.rand(K, S, generator=generator) < 0.8)
        pos[:, 0] = True
        if absent and step % 3 == 1:
            pos[step % K] = False
        neg, second = torch.rand(2, K, B + dual, generator=generator) < 0.7
        neg[:, 0] = second[:, 0] = True
        x = torch.randn(S + B + dual, DIM, generator=generator, dtype=torch.float64)
        x[:S] += 0.4
        if uniform:
            pos, neg = torch.cat([pos, pos.new_zeros(K, B)], 1), torch.cat([pos.new_zeros(K, S), neg[:, :B]], 1)
            index = torch.cat([index, index.new_zeros(K, B)], 1)
            masks, sizes = TaskMasks(pos, neg), (S + B, S + B, 0)
        else:
            masks, sizes = TaskMasks(pos, neg[:, :B], second[:, :dual] if dual else None), (S, B, dual)
        batches.append(PosNegBatch(x, index.where(pos, 0), *sizes, masks=masks, is_uniform=uniform))
    return batches


def alone(batch, label):
    """The batch of one label: the examples that count for it, of each part."""
    masks = batch.masks
    if batch.num_pos == len(batch.inputs):  # uniform
        parts = [batch.inputs[masks.pos[label]], batch.inputs[masks.neg[label]]]
    else:
        cut = batch.inputs.split([batch.num_pos, batch.num_neg, batch.num_dual_neg])
        parts = [rows[mask[label]] for rows, mask in zip(cut, masks, strict=True) if mask is not None]
    sizes = [len(part) for part in parts] + [0] * (3 - len(parts))
    return PosNegBatch(torch.cat(parts), batch.index[label][masks.pos[label]], *sizes)


def make_arrays(rows=160, seed=2, missing=0.2, dtype=torch.float32):
    """Inputs and labels ``(rows, K)`` with nan for what was not measured."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, DIM, generator=generator, dtype=dtype)
    noise = torch.randn(rows, K, generator=generator, dtype=dtype)
    y = (x[:, :K] + noise > 1.2).to(dtype)
    y[torch.rand(rows, K, generator=generator) < missing] = torch.nan
    return x, y


def eval_batches(x, y, size=64):
    """What a data module makes of such arrays to evaluate."""
    target = y.nan_to_num(nan=-1).long()
    ids = torch.arange(len(x))
    return [EvalBatch(x[k : k + size], target[k : k + size], ids[k : k + size]) for k in range(0, len(x), size)]
