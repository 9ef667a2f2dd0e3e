"""The MedMNIST sets with two classes, or several labels of two: images and volumes with sides of 28 to 224 pixels."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from lightning_tpauc.data.examples import ArrayDataset, Datasets
from lightning_tpauc.data.source_files import GivenSplitDataModule, require_file
from lightning_tpauc.errors import DataError
from lightning_tpauc.extras import import_extra
from lightning_tpauc.functional.checks import check_choice

#: The sets with labels of two classes.
MEDMNIST = (
    *("adrenalmnist3d", "nodulemnist3d", "synapsemnist3d", "vesselmnist3d"),
    *("breastmnist", "chestmnist", "pneumoniamnist"),
)
#: Sides of a volume or of an image, in pixels, that the sets are offered in.
SIZES_3D, SIZES_2D = (28, 64), (28, 64, 128, 224)
#: The names of ChestMNIST's labels.
CHEST_LABELS = (
    *("atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia"),
    *("pneumothorax", "consolidation", "edema", "emphysema", "fibrosis", "pleural", "hernia"),
)


class MedMNISTDataModule(GivenSplitDataModule):
    """A MedMNIST set with labels of two classes and its given split; images are float32 in [0, 1], channel first.

    All images are kept in memory as bytes, and a batch is one indexing call. The data set's label 1 is the positive
    class. In ``breastmnist`` and ``synapsemnist3d``, label 1 is the majority, so consider ``positive_class=0``, which
    is "malignant" in the former. ``chestmnist`` has 14 labels, which are trained as 14 tasks at once.

    Args:
        name: one of :data:`MEDMNIST`.
        root: folder of the files, ``adrenalmnist3d.npz`` or ``adrenalmnist3d_64.npz`` for instance.
        size: pixels a side.
        download: whether to download a missing file to ``root``, through the ``medmnist`` package.
        augment: whether to flip and shift training images at random whenever they are read. The random numbers depend
            only on the data module's ``seed``, the step and the image. Validation, test and scoring read unchanged
            images.
        max_shift: largest shift along each axis, in pixels.
        positive_class: which of the set's labels counts as positive, 0 or 1.
        train_with_val: see :class:`~lightning_tpauc.data.source_files.GivenSplitDataModule`.
        **kwargs: arguments of :class:`~lightning_tpauc.PosNegDataModule`.

    Raises:
        ArgumentError: an argument is out of range.
        DataError: in ``prepare_data`` and ``setup``: the file is missing, damaged or of another format.
        MissingExtraError: in ``prepare_data``: ``download`` without medmnist installed.

    Example:
        >>> data = MedMNISTDataModule("nodulemnist3d", root="data", size=64)
        >>> data.path.as_posix()
        'data/nodulemnist3d_64.npz'
    """

    def __init__(
        self,
        name: str = "adrenalmnist3d",
        root: str = "data",
        size: int = 28,
        *,
        download: bool = False,
        augment: bool = False,
        max_shift: int = 2,
        positive_class: int = 1,
        train_with_val: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(train_with_val=train_with_val, **kwargs)
        check_choice(name, "name", MEDMNIST)
        check_choice(size, "size", SIZES_3D if name.endswith("3d") else SIZES_2D)
        check_choice(max_shift, "max_shift", range(size))
        check_choice(positive_class, "positive_class", (0, 1))
        self.dataset_name, self.size = name, size
        self.path = Path(root) / (f"{name}.npz" if size == 28 else f"{name}_{size}.npz")
        self.download, self.augment = download, augment
        self.max_shift, self.positive_class = max_shift, positive_class

    def prepare_data(self) -> None:
        """Download if asked to and needed, in one process; medmnist compares the checksum."""
        if self.download and not self.path.exists():
            medmnist = import_extra("medmnist", "medical")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            kind = getattr(medmnist, medmnist.INFO[self.dataset_name]["python_class"])
            kind(split="train", root=str(self.path.parent), size=self.size, download=True)
        require_file(self.path)

    def load(self) -> Datasets:
        """Read the file and make the three data sets."""
        require_file(self.path)
        try:
            with np.load(self.path, allow_pickle=False) as arrays:
                pixels, labels = (
                    {part: torch.from_numpy(arrays[f"{part}_{what}"]) for part in ("train", "val", "test")}
                    for what in ("images", "labels")
                )
        except Exception as error:  # NumPy and zipfile fail with anything
            raise DataError(f"{self.path} is no whole file of MedMNIST: {error}. Download it again.") from error
        if self.train_with_val:
            for of_parts in (pixels, labels):
                of_parts["train"] = torch.cat([of_parts["train"], of_parts.pop("val")])
        datasets: dict[str, Any] = {part: self._dataset(pixels[part], labels[part]) for part in pixels}
        if self.augment:
            datasets["train"] = AugmentedImages(datasets["train"], self.max_shift)
        return Datasets(**datasets)

    def _dataset(self, pixels: Tensor, labels: Tensor) -> ArrayDataset:
        labels = labels.long().squeeze(-1)
        labels = labels if self.positive_class == 1 else 1 - labels
        dataset = ArrayDataset(pixels[:, None], labels, scale=np.array(1 / 255, dtype=np.float32))
        dataset.label_names = CHEST_LABELS if self.dataset_name == "chestmnist" else None
        return dataset


class AugmentedImages(Dataset[tuple[Tensor, int | Tensor]]):
    """Images with labels. Each image is flipped and shifted at random whenever it is read.

    Each spatial axis is flipped with probability 1/2 and moved by up to ``max_shift`` voxels, uniformly; zeros enter at
    the border. The random numbers come from torch's CPU generator. Evaluation and scoring read the unchanged images.
    """

    def __init__(self, images: ArrayDataset, max_shift: int = 2) -> None:
        self.without_augmentation, self.max_shift = images, max_shift
        self.targets: Any = images.targets
        self.label_names: Any = images.label_names

    def __len__(self) -> int:
        return len(self.without_augmentation)

    def __getitem__(self, row: int) -> tuple[Tensor, int | Tensor]:
        image, label = self.without_augmentation[row]
        axes = image.ndim - 1
        flipped = [axis + 1 for axis, heads in enumerate((torch.rand(axes) < 0.5).tolist()) if heads]
        offsets = torch.randint(-self.max_shift, self.max_shift + 1, (axes,)).tolist()
        return shift(image.flip(flipped), offsets), label


def shift(image: Tensor, offsets: list[int]) -> Tensor:
    """Move an image ``(C, ...)`` along its spatial axes, towards the end where an offset is positive; zeros enter."""
    # `pad` takes the last axis first; what it pads at one end it cuts off at the other.
    return pad(image, [width for offset in reversed(offsets) for width in (offset, -offset)])
