"""600 steps of a network of 20, 32 and 1 units with all defaults, against cross-entropy in the same Trainer.

Both take 256 rows a step, in epochs of 19 steps: cross-entropy with automatic optimization, Adam, torch's DataLoader
and its loss logged in every step, as one writes it; ours with the default data module, 64 positives and 192 negatives.
``DataLoader(batch_size=256)`` puts a batch together row by row, which takes longer than the step. So there is a second
one, which takes all rows of a batch at once. The time is that of the whole ``fit``, start and end included.

    python -m benchmarks.small_steps
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from benchmarks.common import PlainCrossEntropy, arguments, bare_trainer, compare, header, once, quiet, verdict
from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO

FEATURES, STEPS_AN_EPOCH = 20, 19


class CrossEntropy(PlainCrossEntropy):
    """With the default learning rate of ours, and Adam."""

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    target = torch.cat([torch.ones(64 * STEPS_AN_EPOCH), torch.zeros(192 * STEPS_AN_EPOCH)])
    return torch.randn(len(target), FEATURES, generator=generator) + 0.3 * target[:, None], target


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 1))


def cross_entropy(x: torch.Tensor, y: torch.Tensor, steps: int, *, at_once: bool) -> None:
    rows = TensorDataset(x, y)
    if at_once:
        loader = DataLoader(rows, batch_size=None, sampler=BatchSampler(RandomSampler(rows), 256, drop_last=False))
    else:
        loader = DataLoader(rows, batch_size=256, shuffle=True)
    bare_trainer(max_steps=steps, max_epochs=-1).fit(CrossEntropy(network()), loader)


def staco(x: torch.Tensor, y: torch.Tensor, steps: int) -> None:
    module = TPAUCModule(network(), STACO(0.5, 0.5))
    bare_trainer(max_steps=steps, max_epochs=-1).fit(module, PosNegDataModule((x, y)))


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args, steps=600)
    quiet()
    header(f"a fit of {options.steps} steps, a network of {FEATURES}, 32 and 1 units")
    x, y = make_data()
    sides = {
        "cross-entropy, rows at once": lambda: once(lambda: cross_entropy(x, y, options.steps, at_once=True)),
        "cross-entropy, row by row": lambda: once(lambda: cross_entropy(x, y, options.steps, at_once=False)),
        "STACO": lambda: once(lambda: staco(x, y, options.steps)),
    }
    clocks = compare(sides, 3 if options.quick else 9, 1.0, "s")
    for side in list(sides)[:2]:
        verdict(f"a fit, STACO / {side}", clocks["STACO"].over(clocks[side]), 1.3)


if __name__ == "__main__":
    main()
