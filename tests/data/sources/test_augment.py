import itertools

import pytest
import torch

from lightning_tpauc.data.core.arrays import ArrayDataset
from lightning_tpauc.data.sources.medmnist import AugmentedImages, flip_and_shift, shift
from lightning_tpauc.errors import ArgumentError


def naive_shift(volume, offsets):
    moved = torch.zeros_like(volume)
    depth, height, width = volume.shape[1:]
    for d, h, w in itertools.product(range(depth), range(height), range(width)):
        a, b, c = d - offsets[0], h - offsets[1], w - offsets[2]
        if 0 <= a < depth and 0 <= b < height and 0 <= c < width:
            moved[:, d, h, w] = volume[:, a, b, c]
    return moved


@pytest.mark.parametrize("offsets", [[0, 0, 0], [1, 0, -2], [-1, 2, 1], [4, 0, 0], [-9, 1, 1], [3, -3, 3]])
def test_shift_moves_every_voxel(offsets):
    volume = torch.randint(1, 100, (2, 4, 5, 3))
    assert torch.equal(shift(volume, offsets), naive_shift(volume, offsets))


def test_flips_reach_every_orientation_and_only_those():
    image = torch.arange(1, 7).reshape(1, 2, 3)
    expected = {tuple(image.flip(axes).flatten().tolist()) for axes in ([], [1], [2], [1, 2])}
    seen = {tuple(flip_and_shift(image, max_shift=0).flatten().tolist()) for _ in range(100)}
    assert seen == expected


def test_shifts_reach_their_bound_and_not_beyond():
    image = torch.zeros(1, 7, 7)
    image[0, 3, 3] = 1.0
    seen = {tuple(flip_and_shift(image, max_shift=1)[0].nonzero()[0].tolist()) for _ in range(300)}
    assert seen == {(a, b) for a in (2, 3, 4) for b in (2, 3, 4)}


def test_numbers_come_from_torchs_generator():
    image = torch.rand(1, 6, 6, 6)
    torch.manual_seed(4)
    first = flip_and_shift(image, max_shift=2)
    torch.manual_seed(4)
    assert torch.equal(first, flip_and_shift(image, max_shift=2))


def test_images_keep_their_labels_and_originals():
    pixels, labels = torch.rand(5, 1, 8, 8), torch.tensor([0, 1, 1, 0, 1])
    images = AugmentedImages(ArrayDataset(pixels, labels), max_shift=2)
    before = pixels.clone()
    read = [[images[row] for row in range(len(images))] for _ in range(8)]
    assert [label for _, label in read[0]] == labels.tolist()
    assert any(not torch.equal(read[0][0][0], other[0][0]) for other in read[1:])
    assert torch.equal(pixels, before)
    assert torch.equal(images.targets, labels)
    assert torch.equal(images.without_augmentation[2][0], pixels[2])


def test_refuses_a_negative_shift():
    with pytest.raises(ArgumentError, match=r"Expected `max_shift` to be at least 0, but got -1"):
        AugmentedImages(ArrayDataset(torch.zeros(1, 1, 2), [0]), max_shift=-1)
