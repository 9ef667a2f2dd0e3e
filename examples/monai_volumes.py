"""`TPAUCLoss` on MONAI's dictionary items, transforms and networks.

The volumes are generated, one in six of them with a bright ball, so nothing is downloaded. Items are dictionaries with
`image` and `label`, as `Compose` passes them on. Takes seconds.
"""

import torch
from monai.data import DataLoader, Dataset
from monai.networks.nets import DenseNet
from monai.transforms import Compose, RandFlipd, ScaleIntensityd
from monai.utils import set_determinism

from lightning_tpauc import TPAUCLoss
from lightning_tpauc.functional import two_way_partial_auroc

EPOCHS = 8


def make_volumes(count: int) -> list[dict[str, torch.Tensor]]:
    grid = torch.stack(torch.meshgrid(*3 * [torch.linspace(-1, 1, 10)], indexing="ij"))
    items = []
    for number in range(count):
        label, centre = int(number % 6 == 0), torch.rand(3, 1, 1, 1) - 0.5
        ball = ((grid - centre).norm(dim=0) < 0.5).float()
        items.append({"image": torch.randn(1, 10, 10, 10) + 2 * label * ball, "label": torch.tensor(label)})
    return items


def main(epochs: int = EPOCHS) -> None:
    set_determinism(0)
    steady = ScaleIntensityd(keys="image")
    moved = Compose([steady, *(RandFlipd(keys="image", prob=0.5, spatial_axis=axis) for axis in range(3))])
    loader = DataLoader(Dataset(make_volumes(360), moved), batch_size=60, shuffle=True)
    val_loader = DataLoader(Dataset(make_volumes(180), steady), batch_size=60)

    net = DenseNet(3, 1, 1, init_features=8, growth_rate=4, block_config=(2, 2), bn_size=2)
    loss = TPAUCLoss(min_tpr=0.7, max_fpr=0.3)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for epoch in range(epochs):
        net.train()
        for batch, items in enumerate(loader):
            loss.progress = (epoch + batch / len(loader)) / epochs
            value = loss(net(items["image"]), items["label"])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    net.eval()
    with torch.no_grad():
        scored = [(net(items["image"]).squeeze(1), items["label"]) for items in val_loader]
    scores, labels = (torch.cat(parts) for parts in zip(*scored, strict=True))
    print(f"TPAUC {float(two_way_partial_auroc(torch.as_tensor(scores), labels, 0.7, 0.3)):.3f}")


if __name__ == "__main__":
    main()
