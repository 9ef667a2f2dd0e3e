"""`TPAUCLoss` and cross-entropy in one plain loop on ijcnn1: shuffled batches, Adam, no Lightning, one process.

A network 22-64-64-1, TPR >= 0.8 and FPR <= 0.2. Both losses see the same batches from the same weights; the rate is
the best of four by validation, and the weights are those of the epoch that validated best. A random fifth of the
training file validates; the test file is read once, by the weights that validation chose.

    python -m benchmarks.own_loop
"""

from __future__ import annotations

import copy
import statistics

import torch
from torch import Tensor, nn

from benchmarks.common import arguments, header, now
from benchmarks.ijcnn1 import Part, load
from lightning_tpauc import TPAUCLoss
from lightning_tpauc.functional import two_way_partial_auroc

RECTANGLE = 0.8, 0.2
RATES = 0.001, 0.003, 0.01, 0.03


class CrossEntropy(nn.Module):
    """What most loops have."""

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype))


@torch.no_grad()
def tpauc(net: nn.Module, part: Part) -> float:
    return two_way_partial_auroc(net(part.x).squeeze(1), part.y, *RECTANGLE).item()


def train(loss: nn.Module, train: Part, val: Part, rate: float, seed: int, epochs: int) -> tuple[float, nn.Module]:
    """The best validation value of all epochs, and the network that has it."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(train.x.shape[1], 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    best = 0.0, copy.deepcopy(net)
    for epoch in range(epochs):
        batches = torch.split(torch.randperm(len(train.y)), 256)
        for number, rows in enumerate(batches):
            if isinstance(loss, TPAUCLoss):
                loss.progress = (epoch + number / len(batches)) / epochs
            value = loss(net(train.x[rows]).squeeze(1), train.y[rows])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        reached = tpauc(net, val)
        if reached > best[0]:
            best = reached, copy.deepcopy(net)
    return best


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args)
    header("own loop: ijcnn1, network 22-64-64-1, TPR >= 0.8, FPR <= 0.2")
    rates, seeds, epochs = (RATES[1:3], 1, 1) if options.quick else (RATES, 3, 20)
    _, rows, test = load(standardize=True)
    print("| loss | rate | validation | test, median (of the seeds) | seconds a run |\n|---|---|---|---|---|")
    for name in ("cross-entropy", "TPAUCLoss"):
        found = []
        for rate in rates:
            runs, begin = [], now()
            for seed in range(seeds):
                order = torch.randperm(len(rows.y), generator=torch.Generator().manual_seed(seed))
                cut = len(order) // 5
                val, rest = (Part(rows.x[part], rows.y[part]) for part in (order[:cut], order[cut:]))
                loss = CrossEntropy() if name == "cross-entropy" else TPAUCLoss(*RECTANGLE)
                runs.append(train(loss, rest, val, rate, seed, epochs))
            found.append((statistics.median(value for value, _ in runs), rate, runs, (now() - begin) / seeds))
        validated, rate, runs, seconds = max(found, key=lambda each: each[0])
        tested = [tpauc(net, test) for _, net in runs]
        shown = ", ".join(f"{value:.3f}" for value in tested)
        print(f"| {name} | {rate} | {validated:.3f} | {statistics.median(tested):.3f} ({shown}) | {seconds:.0f} |")


if __name__ == "__main__":
    main()
