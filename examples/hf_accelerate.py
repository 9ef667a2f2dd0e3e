"""`TPAUCLoss` in a loop with Accelerate: any number of processes, mixed precision.

`python examples/hf_accelerate.py` is one process, `accelerate launch --cpu --num_processes 2 examples/hf_accelerate.py`
are two. With `gather=True` positives and negatives of all processes form pairs. Takes seconds.
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from lightning_tpauc import TPAUCLoss
from lightning_tpauc.functional import two_way_partial_auroc

EPOCHS = 20


def main() -> None:
    set_seed(0)
    accelerator = Accelerator()
    images, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(digits == 8).long()
    loader = DataLoader(TensorDataset(x[:1200], y[:1200]), batch_size=128 // accelerator.num_processes, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[1200:], y[1200:]), batch_size=200)

    net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    loss = TPAUCLoss(min_tpr=0.8, max_fpr=0.2, gather=True)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    net, optimizer, loader, val_loader = accelerator.prepare(net, optimizer, loader, val_loader)
    loss.to(accelerator.device)
    accelerator.register_for_checkpointing(loss)  # `save_state` and `load_state` take it along

    for epoch in range(EPOCHS):
        for batch, (inputs, labels) in enumerate(loader):
            loss.progress = (epoch + batch / len(loader)) / EPOCHS
            value = loss(net(inputs), labels)
            accelerator.backward(value)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.save_state("hf_accelerate")
    scored = []
    with torch.no_grad():
        for inputs, labels in val_loader:
            scored.append(accelerator.gather_for_metrics((net(inputs).squeeze(1), labels)))
    scores, labels = (torch.cat(parts).cpu() for parts in zip(*scored, strict=True))
    reached = float(two_way_partial_auroc(scores, labels, 0.8, 0.2))
    accelerator.print(f"TPAUC {reached:.3f} with {accelerator.num_processes} processes")


if __name__ == "__main__":
    main()
