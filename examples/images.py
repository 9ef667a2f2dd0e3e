"""A folder of images and a backbone of torchvision, trained from random weights or from yours.

`python examples/images.py FOLDER` reads FOLDER/0 (negatives) and FOLDER/1 (positives), as torchvision's ImageFolder
does. Without a folder it writes scikit-learn's digits to one, the eights to 1. Takes a minute without a GPU.
"""

import argparse
from pathlib import Path

import torch
from lightning.pytorch import Trainer, seed_everything
from PIL import Image
from sklearn.datasets import load_digits
from torchvision.datasets import ImageFolder
from torchvision.models import ShuffleNetV2, shufflenet_v2_x0_5
from torchvision.transforms import v2

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO

SIZE = 32
TO_TENSOR = [v2.ToImage(), v2.Resize((SIZE, SIZE)), v2.ToDtype(torch.float32, scale=True)]
PLAIN = v2.Compose(TO_TENSOR)
AUGMENTED = v2.Compose([v2.RandomAffine(10, translate=(0.1, 0.1)), *TO_TENSOR])


def write_sample(folder: Path) -> None:
    digits = load_digits()
    for number, (image, digit) in enumerate(zip(digits.images[:800], digits.target, strict=False)):
        path = folder / str(int(digit == 8)) / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15.9).astype("uint8")).convert("RGB").save(path)


def backbone(weights: str | None) -> ShuffleNetV2:
    """One score at the end; `weights` is a file of a state_dict, such as torchvision's own once downloaded."""
    net = shufflenet_v2_x0_5(weights=None)
    if weights is not None:
        net.load_state_dict(torch.load(weights, weights_only=True))
    net.fc = torch.nn.Linear(net.fc.in_features, 1)
    return net


def main(folder: Path, weights: str | None, epochs: int) -> None:
    seed_everything(0, verbose=False)
    if not folder.exists():
        write_sample(folder)
    images = ImageFolder(folder, AUGMENTED)  # finds the labels in `images.targets`, without opening a file
    images.without_augmentation = ImageFolder(folder, PLAIN)  # what validates: the same rows, as they are
    data = PosNegDataModule(images, val_fraction=0.3, num_pos=16, num_neg=48)
    model = TPAUCModule(backbone(weights), STACO(min_tpr=0.7, max_fpr=0.3), score_activation="sigmoid")
    trainer = Trainer(max_epochs=epochs, logger=False, enable_checkpointing=False)
    trainer.fit(model, data)
    reached = trainer.validate(model, data, verbose=False)[0]
    print(f"TPAUC {reached['val/tpauc']:.3f}, AUROC {reached['val/auroc']:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="digits", type=Path, help="made if it is not there")
    parser.add_argument("--weights", help="file of the backbone's state_dict to start from")
    parser.add_argument("--epochs", default=6, type=int)
    args = parser.parse_args()
    main(args.folder, args.weights, args.epochs)
