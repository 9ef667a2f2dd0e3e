"""Folders of OGB's that are incomplete or damaged."""

import shutil
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError

import pytest

from lightning_tpauc.data.molecules import OGBMoleculesDataModule
from lightning_tpauc.errors import DataError
from lightning_tpauc.extras import import_extra
from tests.helpers.fake_ogb import make_molecules, write_ogb

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch_geometric", "ogb")), reason="the extra `graph` is not installed"
)
PROCESSED = "processed/geometric_data_processed.pt"


@pytest.fixture(autouse=True)
def imported():
    """ogb, without what it warns of, so that each test can also run alone."""
    import_extra("ogb.graphproppred", "graph")


@pytest.fixture
def folder(tmp_path):
    split = {"train": range(20), "valid": range(20, 26), "test": range(26, 32)}
    return write_ogb(tmp_path, "ogbg-moltox21", make_molecules(32, 12), split)


def set_up(folder):
    datamodule = OGBMoleculesDataModule("ogbg-moltox21", root=str(folder.parent), num_pos=2, num_neg=3)
    datamodule.prepare_data()
    datamodule.setup("fit")
    return datamodule.num_positives


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_half_a_processed_file_names_what_to_remove(folder):
    count = set_up(folder)
    for damage in (halve, lambda path: path.write_bytes(b"")):
        damage(folder / PROCESSED)
        with pytest.raises(DataError, match=rf"{folder} can't be read \(.*Remove {folder}/processed, which is then"):
            set_up(folder)
    shutil.rmtree(folder / "processed")
    assert set_up(folder) == count


@pytest.mark.parametrize("name", ["raw/edge.csv.gz", "raw/graph-label.csv.gz", "split/scaffold/train.csv.gz"])
def test_damaged_text_names_the_folder(folder, name):
    halve(folder / name)
    with pytest.raises(DataError, match=rf"{folder} can't be read \(.*get the whole folder again"):
        set_up(folder)


def test_missing_files_are_not_fetched_unasked(folder, monkeypatch):
    monkeypatch.setattr("ogb.graphproppred.dataset_pyg.download_url", None)
    (folder / "raw" / "edge.csv.gz").unlink()
    with pytest.raises(DataError, match=r"ogbg_moltox21 is not complete: raw/edge.csv.gz is missing. Copy the whole"):
        set_up(folder)
    shutil.rmtree(folder / "split")
    with pytest.raises(DataError, match="is not complete"):
        set_up(folder)


def test_a_download_that_fails_says_so(tmp_path, monkeypatch):
    def refuse(*_):
        msg = "no route to host"
        raise URLError(msg)

    def give_a_page(_, folder):
        (folder := Path(folder)).mkdir(exist_ok=True)
        (folder / "tox21.zip").write_text("<html>please log in</html>")
        return str(folder / "tox21.zip")

    monkeypatch.setattr("ogb.graphproppred.dataset_pyg.decide_download", lambda _: True)
    for download, words in (
        (refuse, "URLError: .*no route to host"),
        (give_a_page, "BadZipFile: File is not a zip file"),
    ):
        monkeypatch.setattr("ogb.graphproppred.dataset_pyg.download_url", download)
        folder = tmp_path / download.__name__
        datamodule = OGBMoleculesDataModule("ogbg-moltox21", root=str(folder), download=True, num_pos=2, num_neg=3)
        with pytest.raises(DataError, match=rf"{folder}/ogbg_moltox21 can't be downloaded \({words}.*Remove it"):
            datamodule.prepare_data()
