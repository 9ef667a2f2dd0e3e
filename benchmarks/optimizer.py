"""A step of the default optimizer on the 62 tensors of ResNet-18, against torch's Adam.

python -m benchmarks.optimizer
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn
from torch.optim import Adam, Optimizer

from benchmarks.common import arguments, compare, header, verdict
from lightning_tpauc import DampedAdam


def side(make: Callable[[list[nn.Parameter]], Optimizer]) -> Callable[[], float]:
    """Seconds of one step on gradients that stay."""
    from torchvision.models import resnet18

    parameters = list(resnet18().parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = make(parameters)
    optimizer.step()  # makes the state

    def step() -> float:
        start = time.process_time()
        optimizer.step()
        return time.process_time() - start

    return step


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args)
    header("a step, 62 tensors of 11.7 million weights")
    sides = {
        "DampedAdam": side(lambda p: DampedAdam(p)),
        "DampedAdam(foreach=True)": side(lambda p: DampedAdam(p, foreach=True)),
        "Adam(foreach=True)": side(lambda p: Adam(p, foreach=True)),
        "Adam(fused=True)": side(lambda p: Adam(p, fused=True)),
    }
    clocks = compare(sides, 7 if options.quick else 31, 1e3, "ms")
    ours = clocks["DampedAdam"]
    verdict("a step, ours / Adam(foreach=True)", ours.over(clocks["Adam(foreach=True)"]), 1.3)
    print(f"a step, ours / Adam(fused=True): {ours.over(clocks['Adam(fused=True)']):.3g}")


if __name__ == "__main__":
    main()
