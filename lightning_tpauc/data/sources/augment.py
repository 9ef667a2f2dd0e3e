"""Random flips and shifts of images and volumes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_tpauc.data.core.arrays import ArrayDataset
from lightning_tpauc.errors import ArgumentError

__all__ = ("AugmentedImages", "flip_and_shift", "shift")


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
