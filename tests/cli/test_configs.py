"""Every file in configs/ trains through the command, on data of the right format and next to no size."""

import bz2
import gzip
import lzma

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from lightning_tpauc import models
from lightning_tpauc.cli import TPAUCCLI, main
from lightning_tpauc.data.molecules import OGB_TASKS
from tests.helpers.fake_ogb import make_molecules, write_ogb
from tests.helpers.paths import ROOT

SKIPPED = TPAUCCLI.subcommands()["fit"]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("tmp_cwd"),
    pytest.mark.filterwarnings(
        "ignore:.*every step takes all of them.*",
        "ignore:.*LightningCLI's args parameter.*",
        "ignore:.*has a `batch_size` of.*",
        "ignore:.* of the labels of .* are 1.*",
    ),
]


# ---------------------------------------------------------------- how to shrink a data set


def write_libsvm(folder, arguments, num_features):
    """Two features and the last one, which gives the width; enough positives to remove 99.5 % of them."""
    generator = np.random.default_rng(0)
    positives = 2400 if arguments.get("remove_positives") else 60
    openers = {".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}
    for name in (arguments["train_file"], arguments.get("test_file")):
        if name is not None:
            suffix = f".{name.split('.')[-1]}"
            labels = generator.permutation([1] * positives + [-1] * 300)
            values = generator.normal(size=(len(labels), 3)) + 0.3 * labels[:, None]
            with openers.get(suffix, open)(folder / name, "wt") as file:
                for label, (a, b, c) in zip(labels, values, strict=True):
                    file.write(f"{label:+d} 1:{a:.3f} 2:{b:.3f} {num_features}:{c:.3f}\n")
    return [f"--data.cache_dir={folder}"]


def write_medmnist(folder, arguments, num_features):
    generator = np.random.default_rng(0)
    size = arguments.get("size", 28)
    arrays = {}
    for part, count in (("train", 80), ("val", 20), ("test", 4)):
        labels = (np.arange(count) % 2).reshape(-1, 1)
        arrays[f"{part}_images"] = generator.integers(0, 255, (count, size, size, size), dtype=np.uint8)
        arrays[f"{part}_labels"] = labels
    np.savez(folder / f"{arguments['name']}{'' if size == 28 else f'_{size}'}.npz", **arrays)
    return []


def write_smiles(folder, arguments, num_features):
    """Rings of every size, so that each molecule has a scaffold of its own."""
    pytest.importorskip("rdkit")
    targets = arguments["target_column"]
    columns = [targets] if isinstance(targets, str) else targets
    # with several columns, a third is not measured
    labels = [
        [str((k + task) % 2) if not task or (k + task) % 3 else "" for task in range(len(columns))] for k in range(120)
    ]
    rows = [f"C1{'C' * (2 + k // 2)}1{'O' if k % 2 else 'N'},{','.join(own)}" for k, own in enumerate(labels)]
    column = arguments.get("smiles_column", "smiles")
    with gzip.open(folder / arguments["file"], "wt") as file:
        file.write(f"{column},{','.join(columns)}\n" + "\n".join(rows))
    return [f"--data.cache_dir={folder}"]


def write_molecules(folder, arguments, num_features):
    pytest.importorskip("ogb")
    write_ogb(
        folder,
        arguments["name"],
        make_molecules(160, OGB_TASKS[arguments["name"]]),
        {"train": range(110), "valid": range(110, 140), "test": range(140, 160)},
    )
    return []


#: Writes a tiny data set where the arguments of the data module expect it; returns further words of the command line.
SHRINK = {
    "lightning_tpauc.DigitsDataModule": None,
    "lightning_tpauc.LIBSVMDataModule": write_libsvm,
    "lightning_tpauc.MedMNISTDataModule": write_medmnist,
    "lightning_tpauc.OGBMoleculesDataModule": write_molecules,
    "lightning_tpauc.SMILESDataModule": write_smiles,
}


class TinyVideoNet(nn.Module):
    """Stands in for the 33 million parameters of ``r3d_18``; same call, same place of the stem."""

    def __init__(self, weights=None, num_classes=1):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv3d(3, 2, 3), nn.BatchNorm3d(2))
        self.head = nn.Linear(2, num_classes)

    def forward(self, inputs):
        return self.head(self.stem(inputs).mean((2, 3, 4)))


# ---------------------------------------------------------------- the test


def make_checkpoint(path, backbone):
    """What an earlier phase leaves: a checkpoint with weights for this backbone."""
    torch.manual_seed(1)
    net = getattr(models, backbone["class_path"].split(".")[-1])(**backbone.get("init_args", {}))
    torch.save({"state_dict": {f"backbone.{name}": value for name, value in net.state_dict().items()}}, path)


def words_for(config, folder):
    """Overrides that let a config run here and now."""
    model, data = config["model"]["init_args"], config["data"]
    words = ["--trainer.fast_dev_run=2", "--trainer.accelerator=cpu", "--trainer.devices=1"]
    words += ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false"]
    assert data["class_path"] in SHRINK, f"Say in SHRINK how to make tiny data for {data['class_path']}."
    shrink = SHRINK[data["class_path"]]
    if shrink is not None:
        num_features = model["backbone"].get("init_args", {}).get("num_features")
        words += [f"--data.root={folder}", *shrink(folder, data["init_args"], num_features)]
    if model.get("init_from") is not None:
        make_checkpoint(folder / "start.ckpt", model["backbone"])
        words.append(f"--model.init_from={folder / 'start.ckpt'}")
    return words


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.relative_to(ROOT / "configs").as_posix())
def test_config_trains(path, tmp_path, capsys, monkeypatch):
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    backbone = config["model"]["init_args"]["backbone"]["class_path"]
    if backbone.endswith("ResNet3D"):
        pytest.importorskip("torchvision")
        monkeypatch.setattr("torchvision.models.video.r3d_18", TinyVideoNet)
    elif backbone.endswith("GIN"):
        pytest.importorskip("torch_geometric")
    # the parsers of the other subcommands take longer than the training
    monkeypatch.setattr(TPAUCCLI, "subcommands", staticmethod(lambda: {"fit": SKIPPED}))
    main(["fit", "--config", str(path), *words_for(config, tmp_path)])
    printed = dict(line.strip().split(" = ") for line in capsys.readouterr().out.splitlines() if " = " in line)
    assert 0 <= float(printed["val/tpauc"]) <= 1
    for callback in config["trainer"].get("callbacks", []):
        monitor = callback.get("init_args", {}).get("monitor")
        assert monitor is None or monitor in printed, f"{monitor} is never logged"


def test_every_phase_finds_the_checkpoint_of_the_one_before():
    """``init_from`` names the file that a config beside it, or the paper's, writes."""
    written = set()
    for path in CONFIGS:
        for callback in yaml.safe_load(path.read_text(encoding="utf-8"))["trainer"].get("callbacks", []):
            arguments = callback.get("init_args", {})
            if "dirpath" in arguments:
                written.add(f"{arguments['dirpath']}/{arguments['filename']}.ckpt")
    read = {yaml.safe_load(path.read_text(encoding="utf-8"))["model"]["init_args"].get("init_from") for path in CONFIGS}
    assert read - {None} <= written
