import itertools
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from lightning_tpauc.data.medmnist import CHEST_LABELS, MEDMNIST, SIZES_2D, SIZES_3D, MedMNISTDataModule, shift
from lightning_tpauc.errors import DataError
from lightning_tpauc.extras import import_extra
from lightning_tpauc.models import CNN3D
from tests.helpers.tolerances import assert_close


def naive_shift(volume, offsets):
    moved = torch.zeros_like(volume)
    depth, height, width = volume.shape[1:]
    for d, h, w in itertools.product(range(depth), range(height), range(width)):
        a, b, c = d - offsets[0], h - offsets[1], w - offsets[2]
        if 0 <= a < depth and 0 <= b < height and 0 <= c < width:
            moved[:, d, h, w] = volume[:, a, b, c]
    return moved


@pytest.mark.parametrize("offsets", [[0, 0, 0], [1, 0, -2], [-1, 2, 1], [3, -3, 2]])
def test_shift_moves_every_voxel(offsets):
    volume = torch.randint(1, 100, (2, 4, 5, 3))
    assert torch.equal(shift(volume, offsets), naive_shift(volume, offsets))


needs_medmnist = pytest.mark.skipif(find_spec("medmnist") is None, reason="medmnist is not installed")
COUNTS = {"train": 40, "val": 10, "test": 12}


def make_arrays(shape=(28, 28, 28), seed=0):
    generator = np.random.default_rng(seed)
    arrays = {}
    for part, count in COUNTS.items():
        arrays[f"{part}_images"] = generator.integers(0, 256, (count, *shape), dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(count) % 4 == 1).astype(np.uint8)[:, None]
    return arrays


@pytest.fixture
def root(tmp_path):
    np.savez(tmp_path / "nodulemnist3d.npz", **make_arrays())
    return tmp_path


def tiny(root, **kwargs):
    arguments = {"name": "nodulemnist3d", "root": str(root), "num_pos": 3, "num_neg": 5, **kwargs}
    return MedMNISTDataModule(**arguments)


def training_inputs(datamodule):
    datamodule.setup("fit")
    return [batch.inputs for batch in datamodule.train_dataloader()]


def test_batches_are_floats_with_the_channel_first(root):
    arrays = make_arrays()
    datamodule = tiny(root)
    datamodule.prepare_data()
    datamodule.setup("fit")
    assert (datamodule.num_positives, datamodule.num_negatives) == (10, 30)
    positives = np.flatnonzero(arrays["train_labels"][:, 0])
    for batch in datamodule.train_dataloader():
        assert batch.inputs.shape == (8, 1, 28, 28, 28)
        assert batch.inputs.dtype == torch.float32
        expected = arrays["train_images"][positives[batch.index.numpy()]] / 255
        assert_close(batch.inputs[:3, 0], expected, "float32")
    assert CNN3D()(batch.inputs).shape == (8,)


def test_positive_class_zero_swaps_the_labels(root):
    one, zero = (tiny(root, positive_class=label).build_datasets(None) for label in (1, 0))
    for name in ("train", "val", "test"):
        assert (getattr(one, name).targets + getattr(zero, name).targets).eq(1).all()


# ---------------------------------------------------------------- augmentation


def test_scoring_and_evaluation_see_images_as_they_are(root):
    arrays = make_arrays()
    datamodule = tiny(root, augment=True, train_with_val=True, val_fraction=0.2)
    datamodule.setup(None)
    pixels = np.concatenate([arrays["train_images"], arrays["val_images"]])
    labels = np.concatenate([arrays["train_labels"], arrays["val_labels"]])[:, 0]
    known = {image.tobytes() for image in pixels}
    for loader in (datamodule.val_dataloader(), *datamodule.scoring_dataloaders()):
        for batch in loader:
            images = (batch.inputs[:, 0] * 255).round().to(torch.uint8).numpy()
            assert all(image.tobytes() in known for image in images)
    positives = next(iter(datamodule.scoring_dataloaders()[0]))
    assert len(positives.target) == datamodule.num_positives < labels.sum()
    assert_close(next(iter(datamodule.test_dataloader())).inputs[:, 0], arrays["test_images"] / 255, "float32")


def test_augmented_images_are_flips_and_shifts(root):
    datamodule = tiny(root, augment=True, max_shift=0)
    plain = training_inputs(tiny(root))[0]
    for image, original in zip(training_inputs(datamodule)[0], plain, strict=True):
        flips = [original.flip(axes) for axes in ([], [1], [2], [3], [1, 2], [1, 3], [2, 3], [1, 2, 3])]
        assert sum(torch.equal(image, flip) for flip in flips) == 1


# ---------------------------------------------------------------- files


@needs_medmnist
def test_names_and_sizes_are_medmnists():
    medmnist = import_extra("medmnist", "medical")
    binary = {name for name, info in medmnist.INFO.items() if info["task"].endswith("binary-class")}
    assert binary == set(MEDMNIST)
    several = medmnist.INFO["chestmnist"]["label"]
    assert tuple(several[str(k)] for k in range(14)) == CHEST_LABELS
    for name in MEDMNIST:
        sizes = SIZES_3D if name.endswith("3d") else SIZES_2D
        assert list(sizes) == getattr(medmnist, medmnist.INFO[name]["python_class"]).available_sizes


@needs_medmnist
def test_downloads_through_medmnist_only_if_asked_and_needed(tmp_path, monkeypatch):
    utils = import_extra("torchvision.datasets.utils", "medical")
    calls = []

    def download_url(url, root, filename, md5):
        calls.append((url, filename, md5))
        np.savez(f"{root}/{filename}", **make_arrays())

    monkeypatch.setattr(utils, "download_url", download_url)
    root = tmp_path / "new" / "folder"
    with pytest.raises(DataError, match=r"does not exist"):
        tiny(root).prepare_data()
    for _ in range(2):
        tiny(root, download=True).prepare_data()
    info = import_extra("medmnist", "medical").INFO["nodulemnist3d"]
    assert calls == [(info["url"], "nodulemnist3d.npz", info["MD5"])]
    assert len(training_inputs(tiny(root, download=True))) > 0
