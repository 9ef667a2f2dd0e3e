"""The MedMNIST sets with two classes, or several labels of two: images and volumes with sides of 28 to 224 pixels."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_tpauc.data.examples import ArrayDataset, Datasets
from lightning_tpauc.data.source_files import GivenSplitDataModule
from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.extras import import_extra

_SIZES_2D, _SIZES_3D = (28, 64, 128, 224), (28, 64)
#: The sets with labels of two classes, and the sizes that each is offered in.
MEDMNIST = {
    "adrenalmnist3d": _SIZES_3D,
    "breastmnist": _SIZES_2D,
    "chestmnist": _SIZES_2D,
    "nodulemnist3d": _SIZES_3D,
    "pneumoniamnist": _SIZES_2D,
    "synapsemnist3d": _SIZES_3D,
    "vesselmnist3d": _SIZES_3D,
}
#: The names of the labels of sets with several.
LABELS = {
    "chestmnist": (
        *("atelectasis", "cardiomegaly", "effusion", "infiltration", "mass", "nodule", "pneumonia"),
        *("pneumothorax", "consolidation", "edema", "emphysema", "fibrosis", "pleural", "hernia"),
    )
}


class MedMNISTDataModule(GivenSplitDataModule):
    """A MedMNIST set with labels of two classes and its given split; images are float32 in [0, 1], channel first.

    All images are held in memory as bytes, and a batch is one indexing call. The data set's label 1 is the positive
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
        MissingExtraError: in ``prepare_data``: ``download`` without medmnist or torchvision installed.

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
        if name not in MEDMNIST:
            msg = f"Expected `name` to be one of {', '.join(MEDMNIST)}, but got {name!r}."
            raise ArgumentError(msg)
        for argument, value, choices in (("size", size, MEDMNIST[name]), ("positive_class", positive_class, (0, 1))):
            if value not in choices:
                msg = f"Expected `{argument}` to be one of {choices} for {name}, but got {value!r}."
                raise ArgumentError(msg)
        if max_shift < 0:
            msg = f"Expected `max_shift` to be at least 0, but got {max_shift!r}."
            raise ArgumentError(msg)
        self.dataset_name, self.size = name, size
        self.path = Path(root) / (f"{name}.npz" if size == 28 else f"{name}_{size}.npz")
        self.download = download
        self.augment, self.max_shift = augment, max_shift
        self.positive_class = positive_class

    def prepare_data(self) -> None:
        """Download if asked to and needed, in one process; medmnist compares the checksum."""
        if self.download and not self.path.exists():
            medmnist = import_extra("medmnist", "medical")
            import_extra("torchvision.datasets.utils", "medical")  # medmnist hides which of its imports failed
            self.path.parent.mkdir(parents=True, exist_ok=True)
            kind = getattr(medmnist, medmnist.INFO[self.dataset_name]["python_class"])
            try:
                kind(split="train", root=str(self.path.parent), size=self.size, download=True)
            except RuntimeError as error:
                url = medmnist.INFO[self.dataset_name]["url" if self.size == 28 else f"url_{self.size}"]
                msg = f"{self.path} could not be downloaded. Fetch {url} yourself and save it under this name."
                raise DataError(msg) from error
        self._require()

    def _require(self) -> None:
        if not self.path.exists():
            msg = f"{self.path} does not exist. Set `--data.root` to its folder, or `--data.download true` to fetch it."
            raise DataError(msg)

    def load(self) -> Datasets:
        """Read the file and make the three data sets."""
        self._require()
        parts = read_medmnist(self.path)
        sides = (1, *(self.size,) * (3 if self.dataset_name.endswith("3d") else 2))
        columns = len(LABELS.get(self.dataset_name, ("",)))
        for name, (pixels, labels) in parts.items():
            if pixels.shape[1:] != sides or labels.shape[1:] != (() if columns == 1 else (columns,)):
                msg = (
                    f"Expected images of shape {sides} with {columns} label(s) in {self.path} (`name`="
                    f"{self.dataset_name!r}, `size`={self.size}), but the {name} part has images of shape "
                    f"{tuple(pixels.shape[1:])} and labels of shape {tuple(labels.shape)}. Correct `name` or `size`."
                )
                raise DataError(msg)
        if self.train_with_val:
            pairs = zip(parts["train"], parts.pop("val"), strict=True)
            parts["train"] = tuple(torch.cat(pair) for pair in pairs)  # type: ignore[assignment]  # of two
        datasets: dict[str, Any] = {name: self._dataset(*part) for name, part in parts.items()}
        if self.augment:
            datasets["train"] = AugmentedImages(datasets["train"], self.max_shift)
        return Datasets(**datasets)

    def _dataset(self, pixels: Tensor, labels: Tensor) -> ArrayDataset:
        labels = labels if self.positive_class == 1 else 1 - labels
        dataset = ArrayDataset(pixels, labels, scale=np.array(1 / 255, dtype=np.float32))
        dataset.label_names = LABELS.get(self.dataset_name)
        return dataset


def read_medmnist(path: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Read a file in MedMNIST's format: arrays ``train_images``, ``train_labels`` and so on for ``val`` and ``test``.

    Args:
        path: an ``.npz`` file; images are uint8 ``(N, H, W)`` or ``(N, D, H, W)``, labels 0 or 1 of shape ``(N, 1)``,
            or ``(N, K)`` of several labels.

    Returns:
        Under ``"train"``, ``"val"`` and ``"test"``: images, uint8 ``(N, 1, ...)``, and labels, int64 ``(N,)`` or
        ``(N, K)``.

    Raises:
        DataError: the file is damaged, or not such a file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "tiny.npz"
        >>> images, labels = np.zeros((2, 28, 28), np.uint8), np.array([[0], [1]])
        >>> np.savez(path, train_images=images, val_images=images, test_images=images,
        ...          train_labels=labels, val_labels=labels, test_labels=labels)
        >>> read_medmnist(path)["train"][0].shape
        torch.Size([2, 1, 28, 28])
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {
                part: (
                    torch.from_numpy(arrays[f"{part}_images"])[:, None],
                    torch.from_numpy(arrays[f"{part}_labels"].astype(np.int64)).squeeze(-1),
                )
                for part in ("train", "val", "test")
            }
    except (AttributeError, EOFError, KeyError, OSError, TypeError, ValueError, zipfile.BadZipFile) as error:
        msg = f"{path} is damaged or not a file in MedMNIST's format: {error}. Remove it and download it again."
        raise DataError(msg) from error


def shift(image: Tensor, offsets: list[int]) -> Tensor:
    """Move an image along its spatial axes. Voxels that enter at the border are zero.

    Args:
        image: ``(C, ...)``, any dtype.
        offsets: voxels per spatial axis, positive towards the end.

    Example:
        >>> shift(torch.tensor([[1, 2, 3]]), [1])
        tensor([[0, 1, 2]])
        >>> shift(torch.tensor([[1, 2, 3]]), [-2])
        tensor([[3, 0, 0]])
    """
    source, sink = [slice(None)], [slice(None)]
    for size, offset in zip(image.shape[1:], offsets, strict=True):
        source.append(slice(max(0, -offset), max(0, size - max(0, offset))))
        sink.append(slice(max(0, offset), max(0, size - max(0, -offset))))
    moved = torch.zeros_like(image)
    moved[tuple(sink)] = image[tuple(source)]
    return moved


def flip_and_shift(image: Tensor, max_shift: int) -> Tensor:
    """Flip each spatial axis with probability 1/2 and move it by up to ``max_shift`` voxels, uniformly.

    Args:
        image: ``(C, ...)``.
        max_shift: largest shift per axis; 0 only flips.

    Returns:
        A new tensor. The random numbers come from torch's CPU generator.
    """
    axes = image.ndim - 1
    flipped = [axis + 1 for axis, heads in enumerate((torch.rand(axes) < 0.5).tolist()) if heads]
    offsets = torch.randint(-max_shift, max_shift + 1, (axes,)).tolist()
    return shift(image.flip(flipped), offsets)


class AugmentedImages(Dataset[tuple[Tensor, int | Tensor]]):
    """Images with labels. Each image is flipped and shifted at random whenever it is read.

    Args:
        images: the unchanged images. Evaluation and scoring read them as :attr:`without_augmentation`.
        max_shift: largest shift per axis, at least 0.

    Raises:
        ArgumentError: ``max_shift`` is negative.

    Example:
        >>> images = AugmentedImages(ArrayDataset(torch.eye(4)[None, None], torch.tensor([1])), max_shift=0)
        >>> image, label = images[0]
        >>> image.shape, image.sum().item(), label
        (torch.Size([1, 4, 4]), 4.0, 1)
    """

    def __init__(self, images: ArrayDataset, max_shift: int = 2) -> None:
        if max_shift < 0:
            msg = f"Expected `max_shift` to be at least 0, but got {max_shift!r}."
            raise ArgumentError(msg)
        self.without_augmentation = images
        self.max_shift = max_shift
        self.targets: Any = images.targets
        self.label_names: Any = images.label_names

    def __len__(self) -> int:
        return len(self.without_augmentation)

    def __getitem__(self, row: int) -> tuple[Tensor, int | Tensor]:
        image, label = self.without_augmentation[row]
        return flip_and_shift(image, self.max_shift), label
