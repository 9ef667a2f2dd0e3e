"""Your own loop and your own DataLoader, without Lightning: `TPAUCLoss` stands where cross-entropy did.

Two lines are new: the loop says how far the run is, and a running mean of the weights is what is used in the end.
Takes seconds: `python examples/plain_loop.py`.
"""

import torch
from sklearn.datasets import load_digits
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from lightning_tpauc import TPAUCLoss
from lightning_tpauc.functional import two_way_partial_auroc

EPOCHS = 40


def evaluate(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return float(two_way_partial_auroc(model(x).squeeze(1), y, min_tpr=0.8, max_fpr=0.2))


def main() -> None:
    torch.manual_seed(0)
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(digits == 8).long()
    x, y, x_val, y_val = x[:1200], y[:1200], x[1200:], y[1200:]
    loader = DataLoader(TensorDataset(x, y), batch_size=128, shuffle=True)

    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    average = AveragedModel(model, avg_fn=get_ema_avg_fn(0.98))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss = TPAUCLoss(min_tpr=0.8, max_fpr=0.2)

    print(f"TPAUC {evaluate(model, x_val, y_val):.3f} before training")
    for epoch in range(EPOCHS):
        for batch, (inputs, labels) in enumerate(loader):
            loss.progress = (epoch + batch / len(loader)) / EPOCHS  # the rectangle shrinks over the first half
            value = loss(model(inputs), labels)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            average.update_parameters(model)
    print(f"TPAUC {evaluate(average, x_val, y_val):.3f} after training")
    saved = {"model": average.module.state_dict(), "loss": loss.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(saved, "plain_loop.pt")


if __name__ == "__main__":
    main()
