"""Samples per second that reach the training loop: 22 features, 96 a step, from tensors in memory.

python -m benchmarks.batches
"""

from __future__ import annotations

import itertools

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.common import arguments, compare, header, import_libauc, now, verdict
from lightning_tpauc import PosNegDataModule

ROWS, FEATURES = 50_000, 22


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args)
    header("batches")
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(ROWS, FEATURES, generator=generator), (torch.arange(ROWS) % 10 == 0).long()
    index = torch.arange(ROWS)
    steps = 200 if options.quick else 500

    def ours(shared: bool) -> float:
        data = PosNegDataModule((x, y), num_pos=32, num_neg=64 if shared else 32, num_dual_neg=0 if shared else 32)
        data.setup("fit")
        start = now()
        for _ in itertools.islice(data.train_dataloader(), steps):
            pass
        return (now() - start) / (steps * 96)

    def libauc() -> float:
        _, _, sampler_class = import_libauc()
        dataset = TensorDataset(x, y, index)
        sampler = sampler_class(dataset, 96, labels=y.numpy(), sampling_rate=1 / 3)
        start = now()
        for _ in itertools.islice(DataLoader(dataset, batch_size=96, sampler=sampler), steps):
            pass
        return (now() - start) / (steps * 96)

    def shuffled() -> float:
        start = now()
        for _ in itertools.islice(DataLoader(TensorDataset(x, y), batch_size=96, shuffle=True), steps):
            pass
        return (now() - start) / (steps * 96)

    sides = {
        "PosNegDataModule, 32 + 32 + 32": lambda: ours(False),
        "PosNegDataModule, 32 + 64": lambda: ours(True),
        "LibAUC's DualSampler in a DataLoader, 32 + 64": libauc,
        "DataLoader(shuffle=True), 96": shuffled,
    }
    clocks = compare(sides, 5 if options.quick else 15, 1e9, "ns a sample")
    names = list(sides)
    verdict("LibAUC's time / ours", clocks[names[2]].over(clocks[names[0]]), 10.0, at_least=True)


if __name__ == "__main__":
    main()
