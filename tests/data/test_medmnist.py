import itertools
import sys
import zipfile
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from lightning_tpauc.data.examples import ArrayDataset
from lightning_tpauc.data.medmnist import (
    LABELS,
    MEDMNIST,
    AugmentedImages,
    MedMNISTDataModule,
    flip_and_shift,
    read_medmnist,
    shift,
)
from lightning_tpauc.errors import ArgumentError, DataError
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


def damage_compressed(path, arrays):
    np.savez_compressed(path, **arrays)
    content = bytearray(path.read_bytes())
    content[3_000:3_100] = b"\xff" * 100
    path.write_bytes(content)


def claim(path, arrays, rows):
    """The labels' header names more rows than there are."""
    header = {"descr": "|u1", "fortran_order": False, "shape": (rows, 3)}
    np.savez(path, **{name: array for name, array in arrays.items() if name != "val_labels"})
    with zipfile.ZipFile(path, "a") as archive, archive.open("val_labels.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(bytes(10))


def raw(path, arrays):
    np.savez(path, **{name: array for name, array in arrays.items() if name != "val_labels"})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("val_labels.npy", bytes(10))


def tiny(root, **kwargs):
    arguments = {"name": "nodulemnist3d", "root": str(root), "verify": False, "num_pos": 3, "num_neg": 5, **kwargs}
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


def test_the_range_is_zero_to_one_exactly(root):
    image = torch.stack(training_inputs(tiny(root)))
    assert image.min() == 0.0
    assert image.max() == 1.0


@pytest.mark.parametrize("name", ["val", "test"])
def test_evaluation_parts_in_the_order_of_the_file(root, name):
    arrays, datamodule = make_arrays(), tiny(root, batch_size=7)
    datamodule.setup(None)
    batches = list(getattr(datamodule, f"{name}_dataloader")())
    assert torch.cat([batch.target for batch in batches]).tolist() == arrays[f"{name}_labels"][:, 0].tolist()
    assert_close(torch.cat([batch.inputs for batch in batches])[:, 0], arrays[f"{name}_images"] / 255, "float32")


def test_training_and_validation_part_together(root):
    arrays, datamodule = make_arrays(), tiny(root, train_with_val=True, num_folds=4, fold=1)
    datamodule.setup("fit")
    train = datamodule.build_datasets("fit").train
    expected = np.concatenate([arrays["train_images"], arrays["val_images"]])
    assert torch.equal(train.features[:, 0], torch.from_numpy(expected))
    assert datamodule.num_positives + datamodule.num_negatives < len(train) == 50


def test_positive_class_zero_swaps_the_labels(root):
    one, zero = (tiny(root, positive_class=label).build_datasets(None) for label in (1, 0))
    for name in ("train", "val", "test"):
        assert (getattr(one, name).targets + getattr(zero, name).targets).eq(1).all()


# ---------------------------------------------------------------- augmentation


def test_augmentation_depends_on_seed_step_and_image_alone(root):
    plain = training_inputs(tiny(root))
    first, again = (training_inputs(tiny(root, augment=True)) for _ in range(2))
    other = training_inputs(tiny(root, augment=True, seed=1))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, plain, strict=True))
    assert not torch.equal(first[0], other[0])
    torch.manual_seed(77)
    assert torch.equal(training_inputs(tiny(root, augment=True))[0], first[0])
    # Each image on its own: what else is in the batch does not matter.
    smaller = training_inputs(tiny(root, augment=True, num_neg=4))[0]
    assert torch.equal(smaller[:3], first[0][:3])


def test_augmentation_leaves_the_global_generator_alone(root):
    datamodule = tiny(root, augment=True)
    datamodule.setup("fit")
    state = torch.get_rng_state()
    next(iter(datamodule.train_dataloader()))
    assert torch.equal(torch.get_rng_state(), state)


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


@pytest.mark.parametrize("shape", [(28, 28), (64, 64), (28, 28, 28)])
def test_images_and_volumes_of_every_size(tmp_path, shape):
    name = "pneumoniamnist" if len(shape) == 2 else "vesselmnist3d"
    size = shape[0]
    np.savez(tmp_path / (f"{name}.npz" if size == 28 else f"{name}_{size}.npz"), **make_arrays(shape))
    datamodule = MedMNISTDataModule(name, str(tmp_path), size, verify=False, num_pos=2, num_neg=2)
    assert training_inputs(datamodule)[0].shape == (4, 1, *shape)


@pytest.mark.parametrize("stage", ["prepare_data", "setup"])
def test_names_a_missing_file(tmp_path, stage):
    datamodule = tiny(tmp_path, size=64)
    message = r"nodulemnist3d_64.npz does not exist. Set `--data.root` to the folder that holds it, or `--data.download"
    with pytest.raises(DataError, match=message):
        getattr(datamodule, stage)()


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path, arrays: path.write_bytes(path.read_bytes()[:1000]), id="cut"),
        pytest.param(lambda path, arrays: path.write_bytes(b""), id="empty"),
        pytest.param(lambda path, arrays: damage_compressed(path, arrays), id="damaged inside"),
        pytest.param(lambda path, arrays: path.write_bytes(b"<html>not found</html>"), id="a web page"),
        pytest.param(lambda path, arrays: np.savez(path, train_images=arrays["train_images"]), id="parts missing"),
        pytest.param(
            lambda path, arrays: np.savez(path, **{**arrays, "val_labels": np.arange(10)[:, None]}), id="ten classes"
        ),
        pytest.param(
            lambda path, arrays: np.savez(path, **{**arrays, "val_labels": np.zeros((9, 1))}), id="a label missing"
        ),
        pytest.param(
            lambda path, arrays: np.savez(path, **{**arrays, "test_images": np.zeros((12, 28, 28, 28))}), id="floats"
        ),
        pytest.param(lambda path, arrays: np.savez(path, **{**arrays, "val_labels": np.uint8(1)}), id="0-d labels"),
        pytest.param(lambda path, arrays: np.savez(path, **{**arrays, "val_images": np.uint8(1)}), id="0-d images"),
        pytest.param(lambda path, arrays: np.savez(path, **{**arrays, "val_labels": np.array(["0"] * 10)}), id="text"),
        pytest.param(
            lambda path, arrays: np.savez(path, **{**arrays, "val_labels": np.array([0j] * 10)}), id="complex labels"
        ),
        pytest.param(
            lambda path, arrays: np.savez(path, **{**arrays, "val_labels": np.array([{}] * 10)}), id="pickled labels"
        ),
        pytest.param(lambda path, arrays: claim(path, arrays, 1 << 36), id="claims gigabytes"),
        pytest.param(lambda path, arrays: claim(path, arrays, 1 << 44), id="claims terabytes"),
        pytest.param(lambda path, arrays: claim(path, arrays, 1 << 62), id="claims more than can be counted"),
        pytest.param(lambda path, arrays: np.save(path.open("wb"), arrays["train_labels"]), id="one array"),
        pytest.param(lambda path, arrays: raw(path, arrays), id="no arrays inside"),
    ],
)
def test_refuses_a_damaged_file(root, spoil):
    path = root / "nodulemnist3d.npz"
    spoil(path, make_arrays())
    with pytest.raises(
        DataError, match=r"nodulemnist3d.npz is damaged or not a file in MedMNIST's format: .*Remove it"
    ):
        read_medmnist(path)


@needs_medmnist
def test_names_and_sizes_are_medmnists():
    medmnist = import_extra("medmnist", "medical")
    binary = {name for name, info in medmnist.INFO.items() if info["task"].endswith("binary-class")}
    assert binary == set(MEDMNIST)
    several = medmnist.INFO["chestmnist"]["label"]
    assert LABELS["chestmnist"] == tuple(several[str(k)] for k in range(14))
    for name, sizes in MEDMNIST.items():
        assert list(sizes) == getattr(medmnist, medmnist.INFO[name]["python_class"]).available_sizes


@needs_medmnist
def test_verifies_counts(root):
    with pytest.raises(
        DataError, match=r"Expected \{'train': 1158, .* images in .*, but got \{'train': 40, .*`verify=False`"
    ):
        tiny(root, verify=True).setup("fit")


@pytest.mark.parametrize("shape", [(64, 64, 64), (28, 28), (28, 28, 16)])
def test_refuses_images_of_another_shape(tmp_path, shape):
    np.savez(
        tmp_path / "nodulemnist3d.npz", **{**make_arrays(), "val_images": np.zeros((COUNTS["val"], *shape), np.uint8)}
    )
    with pytest.raises(
        DataError, match=r"of shape \(1, 28, 28, 28\) in .*nodulemnist3d.npz .*'val': .* Correct `name`"
    ):
        tiny(tmp_path).setup("fit")


@needs_medmnist
def test_verifies_the_checksum(tmp_path, shared_data):
    with np.load(shared_data / "medmnist" / "adrenalmnist3d.npz") as official:
        arrays = dict(official)
    arrays["train_images"][0, 0, 0, 0] ^= 255
    np.savez_compressed(tmp_path / "adrenalmnist3d.npz", **arrays)
    with pytest.raises(
        DataError, match=r"Expected the md5 checksum bbd3c5a5576322bc4cdfea780653b1ce of .*, but got [0-9a-f]{32}"
    ):
        MedMNISTDataModule(root=str(tmp_path)).setup("fit")


def test_reads_without_medmnist(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "medmnist", None)
    assert len(training_inputs(tiny(root, verify=True))) > 0


@needs_medmnist
def test_equals_the_official_classes_on_the_real_file(shared_data):
    folder = shared_data / "medmnist"
    official = import_extra("medmnist", "medical").AdrenalMNIST3D
    datasets = MedMNISTDataModule(root=str(folder)).build_datasets(None)
    rates = {}
    for part, dataset in (("train", datasets.train), ("val", datasets.val), ("test", datasets.test)):
        theirs = official(split=part, root=str(folder))
        assert len(dataset) == len(theirs)
        for row in (0, 7, len(theirs) - 1):
            image, label = theirs[row]
            ours, our_label = dataset[row]
            assert_close(ours, image, "float32")
            assert our_label == label[0]
        rates[part] = round(100 * dataset.targets.double().mean().item(), 1)
    # The paper's table: 1,188 (21.8%) / 98 (22.4%) and 298 (23.1%); 69 of 298 is 23.154%.
    assert (len(datasets.train), len(datasets.val), len(datasets.test)) == (1188, 98, 298)
    assert rates == {"train": 21.8, "val": 22.4, "test": 23.2}


# ---------------------------------------------------------------- download


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


@needs_medmnist
def test_says_what_to_fetch_by_hand_when_the_download_fails(tmp_path, monkeypatch):
    utils = import_extra("torchvision.datasets.utils", "medical")

    def no_network(**kwargs):
        raise OSError

    monkeypatch.setattr(utils, "download_url", no_network)
    with pytest.raises(
        DataError, match=r"nodulemnist3d_64.npz could not be downloaded. Fetch https://zenodo.org/.*nodulemnist3d_64"
    ):
        tiny(tmp_path, size=64, download=True).prepare_data()


@pytest.mark.parametrize("module", ["medmnist", "torchvision.datasets.utils"])
def test_a_download_names_the_extra(tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"pip install 'lightning-tpauc\[medical\]'"):
        tiny(tmp_path, download=True).prepare_data()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "pathmnist"}, r"Expected `name` to be one of adrenalmnist3d, .*, but got 'pathmnist'"),
        ({"size": 128}, r"Expected `size` to be one of \(28, 64\) for nodulemnist3d, but got 128"),
        ({"positive_class": 2}, r"Expected `positive_class` to be one of \(0, 1\) for nodulemnist3d, but got 2"),
        ({"max_shift": -1}, r"Expected `max_shift` to be at least 0, but got -1"),
        ({"num_folds": 5, "fold": 0}, r"Got `num_folds`, but the data set has a validation part already"),
    ],
)
def test_refuses_wrong_arguments(tmp_path, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        tiny(tmp_path, **arguments)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_no_flipped_byte_is_read_in_silence(root, save):
    path = root / "nodulemnist3d.npz"
    save(path, **make_arrays())
    whole, expected = path.read_bytes(), read_medmnist(path)
    refused = 0
    for at in np.linspace(0, len(whole) - 1, 150, dtype=int):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            found = read_medmnist(path)
        except DataError:
            refused += 1
            continue
        for part, images in expected.items():  # a byte that means nothing, such as a date in a header
            assert torch.equal(found[part].pixels, images.pixels)
            assert torch.equal(found[part].labels, images.labels)
    assert refused > 100


def test_every_cut_is_refused(root):
    path = root / "nodulemnist3d.npz"
    whole = path.read_bytes()
    for size in np.linspace(0, len(whole) - 1, 60, dtype=int):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match="is damaged or not a file"):
            read_medmnist(path)
