"""Your own loop and your own DataLoader, without Lightning: the algorithm is a loss that remembers.

What the Trainer does besides is spelled out here: the exact start, the rectangle that shrinks, the average of the
weights. Takes seconds: `python examples/plain_loop.py`.
"""

import torch
from sklearn.datasets import load_digits
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from lightning_tpauc import TwoWayPartialAUROC
from lightning_tpauc.algorithms import STACO, TrainingScores

STEPS, BATCH = 300, 128


def evaluate(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    metric = TwoWayPartialAUROC(min_tpr=0.8, max_fpr=0.2)
    with torch.no_grad():
        metric.update(model(x).squeeze(1), y)
    return float(metric.compute())


def main() -> None:
    torch.manual_seed(0)
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(digits == 8).long()
    x, y, x_val, y_val = x[:1200], y[:1200], x[1200:], y[1200:]

    # The algorithm knows the positives by their number 0 .. n - 1; negatives need none.
    number = torch.where(y == 1, y.cumsum(0) - 1, -1)
    # Positives are drawn as often as negatives. A positive may come twice in a batch, and counts once.
    sampler = WeightedRandomSampler(torch.where(y == 1, 0.25 / y.sum(), 0.75 / (1 - y).sum()).tolist(), STEPS * BATCH)
    loader = DataLoader(TensorDataset(x, y, number), batch_size=BATCH, sampler=sampler)

    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    average = AveragedModel(model, avg_fn=lambda mean, new, count: mean + (new - mean) * 9 / (count + 9))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    algorithm = STACO(min_tpr=0.8, max_fpr=0.2)
    algorithm.setup(num_positives=int(y.sum()))
    algorithm.tightness = 0.0  # the rectangle is the whole square at first
    with torch.no_grad():
        algorithm.start(TrainingScores(model(x[y == 1]).squeeze(1), model(x[y == 0]).squeeze(1)))

    print(f"TPAUC {evaluate(model, x_val, y_val):.3f} before training")
    for step, (inputs, labels, index) in enumerate(loader):
        algorithm.tightness = min(1.0, 2 * step / STEPS)
        scores = model(inputs).squeeze(1)
        unique, inverse = index[labels == 1].unique(return_inverse=True)
        positives = torch.zeros_like(unique).scatter_(0, inverse, torch.arange(len(inverse)))
        loss = algorithm(scores[labels == 1][positives], scores[labels == 0], index=unique)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
    print(f"TPAUC {evaluate(average, x_val, y_val):.3f} after training")
    torch.save({"model": average.module.state_dict(), "algorithm": algorithm.state_dict()}, "plain_loop.pt")


if __name__ == "__main__":
    main()
