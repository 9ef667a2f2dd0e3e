"""Memory and time of a step in chunks: 64 + 4,096 volumes of 28^3 beside 64 in all.

Each case is a process of its own, whose resident memory is read before the step, with the volumes already there, and at
its highest. A 3-D convolutional network, STACO, one step of `TPAUCModule` after a small one that warms up.

    python -m benchmarks.chunks
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import torch
from torch import Tensor

from benchmarks.common import arguments, bare_trainer, header, now, quiet
from lightning_tpauc import PosNegBatch, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.models import CNN3D

SIDE = 28


class Batches(torch.utils.data.Dataset[PosNegBatch]):
    """A small batch that warms up, then the one that is measured."""

    def __init__(self, num_pos: int, num_neg: int) -> None:
        self.sizes = [(2, 2), (num_pos, num_neg)]
        self.volumes = [torch.randn(sum(size), 1, SIDE, SIDE, SIDE) for size in self.sizes]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, step: int) -> PosNegBatch:
        num_pos, num_neg = self.sizes[step]
        return PosNegBatch(self.volumes[step], torch.arange(num_pos), num_pos, num_neg, 0)


class Measured(TPAUCModule):
    """Notes memory and time of the last step."""

    def training_step(self, batch: PosNegBatch, batch_idx: int = 0) -> Tensor:
        self.before, begin = _peak(), now()
        loss = super().training_step(batch, batch_idx)
        self.seconds = now() - begin
        return loss


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(num_pos: int, num_neg: int, chunk_size: int | None) -> dict[str, float]:
    """MiB that the step adds, and its seconds."""
    quiet()
    torch.manual_seed(0)
    module = Measured(CNN3D(), STACO(0.5, 0.5, dual_init="zeros"), chunk_size=chunk_size, num_positives=num_pos)
    loader = torch.utils.data.DataLoader(Batches(num_pos, num_neg), batch_size=None)
    bare_trainer(max_epochs=1).fit(module, loader)
    return {"mib": _peak() - module.before, "seconds": module.seconds}


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args, case="")
    if options.case:
        print(json.dumps(one(*json.loads(options.case))))
        return
    header("chunks: CNN3D, volumes of 28^3, one step")
    large = 512 if options.quick else 4096
    cases = {"16 + 48, whole": (16, 48, None), f"64 + {large}, chunks of 64": (64, large, 64)}
    cases["16 + 240, whole"] = (16, 240, None)
    print("| batch | MiB that a step adds | seconds |\n|---|---|---|")
    for name, case in cases.items():
        command = [sys.executable, "-m", "benchmarks.chunks", "--case", json.dumps(case)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])  # noqa: S603
        print(f"| {name} | {found['mib']:.0f} | {found['seconds']:.1f} |")


if __name__ == "__main__":
    main()
