"""A tiny problem with batches drawn by hand, so that a Trainer and a plain loop can see the same samples."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import nn

from lightning_tpauc import StageCallback
from lightning_tpauc.algorithms import SONX, SOTA, STACO, SOTAs
from lightning_tpauc.data.batch import EvalBatch, PosNegBatch

NUM_POS, NUM_NEG, DIM = 23, 40, 4

_PAPER_LOSS: dict[str, Any] = {"surrogate": "squared_hinge", "margin": 0.5, "step_units": "absolute"}
#: Methods with the settings of the papers, as configs/paper has them.
paper_staco = partial(STACO, **_PAPER_LOSS, beta=0.3, beta_prime=0.3, share_negatives=False)
paper_sota = partial(SOTA, **_PAPER_LOSS, alpha=0.1, beta=0.1, beta_prime=0.1)
paper_sonx = partial(SONX, **_PAPER_LOSS, beta=0.1, beta_prime=0.1)
paper_sotas = partial(SOTAs, **_PAPER_LOSS, lam=1.0, lam_prime=1.0)
#: The paper's stages: a fixed rectangle, the mean of all iterates, the last solution.
PAPER_TRAINING: dict[str, Any] = {"shrink_rectangle": False, "averaging": "uniform", "keep_best": False}
paper_stages = partial(StageCallback, **PAPER_TRAINING)


class LinearScore(nn.Module):
    """Scores without a bias, started at zero."""

    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, inputs):
        return inputs @ self.weight


def noisy_labels(rows, features, noise, bound=1.0, seed=3):
    """Features, and labels that the first of them predicts up to noise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, features, generator=generator)
    return x, (x[:, 0] + noise * torch.randn(rows, generator=generator) > bound).long()


def shifted(labels, features, shift, seed=0):
    """Features in which positives are moved, and the labels."""
    labels = labels.long()
    x = torch.randn(len(labels), features, generator=torch.Generator().manual_seed(seed))
    return x + shift * labels[:, None], labels


def make_problem():
    """24 positives and 80 negatives with five features."""
    return shifted(torch.arange(104) < 24, 5, 0.4, seed=3)


def make_data(dtype=torch.float64, generator=None):
    """Positives and negatives, drawn from a generator that batches may be drawn from next."""
    generator = generator or torch.Generator().manual_seed(0)
    pos = torch.randn(NUM_POS, DIM, generator=generator, dtype=torch.float64) + 0.4
    neg = torch.randn(NUM_NEG, DIM, generator=generator, dtype=torch.float64)
    return pos.to(dtype), neg.to(dtype)


def draw(generator, num_pos=5, num_neg=7, num_dual=6):
    """Numbers of the positives, negatives and dual negatives of one batch."""
    index = torch.randperm(NUM_POS, generator=generator)[:num_pos]
    first = torch.randint(NUM_NEG, (num_neg,), generator=generator)
    return index, first, torch.randint(NUM_NEG, (num_dual,), generator=generator)


def make_batches(steps, num_pos=5, num_neg=7, num_dual=6, dtype=torch.float64, seed=1):
    """Joint batches, and beside each the parts it was made of."""
    pos, neg = make_data(dtype)
    generator = torch.Generator().manual_seed(seed)
    batches, parts = [], []
    for _ in range(steps):
        index, first, second = draw(generator, num_pos, num_neg, num_dual)
        inputs = torch.cat([pos[index], neg[first], neg[second]])
        batches.append(PosNegBatch(inputs, index, num_pos, num_neg, num_dual))
        parts.append((pos[index], neg[first], neg[second], index))
    return batches, parts


def loader(batches):
    """A DataLoader that hands out ready-made batches in order."""
    return torch.utils.data.DataLoader(batches, batch_size=None, shuffle=False)


def eval_loader(dtype=torch.float64):
    """All positives and negatives, in two batches."""
    pos, neg = make_data(dtype)
    inputs, target = torch.cat([pos, neg]), torch.cat([torch.ones(NUM_POS), torch.zeros(NUM_NEG)]).long()
    ids = torch.arange(len(target))
    return loader([EvalBatch(inputs[k::2], target[k::2], ids[k::2]) for k in range(2)])


def bare_trainer(**options):
    """A Trainer on one CPU device without logger, checkpoints, bar and summary; keyword arguments override."""
    shows = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return Trainer(**{"accelerator": "cpu", "devices": 1, **dict.fromkeys(shows, False), **options})


def make_trainer(**kwargs):
    """A bare Trainer in double precision for one epoch; keyword arguments override."""
    return bare_trainer(**{"precision": "64-true", "max_epochs": 1, **kwargs})
