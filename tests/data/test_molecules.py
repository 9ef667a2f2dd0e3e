import builtins
import csv
import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from lightning_tpauc.data.molecules import OGB_TASKS, OGBMoleculesDataModule, SMILESDataModule, scaffold_split
from lightning_tpauc.errors import DataError, TPAUCWarning
from lightning_tpauc.extras import import_extra
from tests.helpers.fake_ogb import make_molecules, write_ogb

needs_graph = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch_geometric", "ogb", "rdkit")),
    reason="the extra `graph` is not installed",
)
RINGS = ["c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccoc1", "C1CCNCC1", "c1ccsc1", "C1CC1", "C1CCC1"]


def smiles_rows(count=120):
    """Rings with tails: (label, SMILES); common rings first, every seventh row unlabelled."""
    rows = []
    for k in range(count):
        ring = RINGS[min(k % 8, k % 5)]
        label = "" if k % 7 == 3 else str(int(k % 4 == 0))
        rows.append((label, "C" * (1 + k // 8) + ring))
    return rows


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rings.csv"
    path.write_text("smiles,active\n" + "".join(f"{text},{label}\n" for label, text in smiles_rows()))
    return path


def smiles_module(file, **kwargs):
    arguments = {
        "root": str(file.parent),
        "cache_dir": str(file.parent / "cache"),
        "num_pos": 4,
        "num_neg": 6,
        **kwargs,
    }
    return SMILESDataModule(file.name, "active", **arguments)


def ring_of(graph):
    """Elements and aromaticity of the atoms in the ring, which tell these rings apart."""
    ring = graph.x[graph.x[:, 8] == 1]
    return tuple(sorted(map(tuple, ring[:, [0, 7]].tolist())))


def targets_of(dataset):
    """Labels of a part of a data set."""
    return dataset.dataset.targets[dataset.indices].tolist()


def number_of_carbons(graph):
    return int((graph.x[:, 0] == 5).sum())


@needs_graph
def test_scaffold_split_as_by_hand(file):
    chem = import_extra("rdkit.Chem", "graph")
    murcko = import_extra("rdkit.Chem.Scaffolds.MurckoScaffold", "graph")
    rows = smiles_rows()
    groups = {}
    for k, (_, text) in enumerate(rows):  # also without a label
        mol = chem.MolFromSmiles(text)
        groups.setdefault(chem.MolToSmiles(murcko.GetScaffoldForMol(mol)), []).append(k)
    parts = {"train": [], "val": [], "test": []}
    for members in sorted(groups.values(), key=lambda group: (-len(group), -group[0])):
        if len(parts["train"]) + len(members) <= 0.6 * len(rows):
            parts["train"] += members
        elif len(parts["train"]) + len(parts["val"]) + len(members) <= 0.8 * len(rows):
            parts["val"] += members
        else:
            parts["test"] += members
    datasets = smiles_module(file, fractions=(0.6, 0.2, 0.2)).build_datasets(None)
    for name, members in parts.items():
        expected = sorted(k for k in members if rows[k][0])
        dataset = getattr(datasets, name)
        assert targets_of(dataset) == [int(rows[k][0]) for k in expected], name
        assert len(expected) > 5
        for graph, k in zip(dataset, expected, strict=True):
            assert number_of_carbons(graph) == rows[k][1].lower().count("c")
    assert datasets.predict is datasets.test


def test_a_fraction_is_met_exactly_in_spite_of_rounding():
    # 0.7 + 0.1 is 0.7999...: ten groups of one must still be cut 7, 1, 2.
    assert [len(part) for part in scaffold_split(range(10), (0.7, 0.1, 0.2))] == [7, 1, 2]


@needs_graph
@pytest.mark.parametrize("how", [{"val_fraction": 0.25}, {"num_folds": 3, "fold": 1}])
def test_a_split_by_scaffolds_parts_none_of_them(file, how):
    data = smiles_module(
        file, split="random", fractions=(0.6, 0.4, 0.0), train_with_val=True, groups="scaffolds", **how
    )
    data.setup("fit")
    part, graphs = data._prepared.training, data._prepared.datasets.train
    train, val = ({ring_of(graphs[int(row)]) for row in rows} for rows in (part.rows, part.parts["val"]))
    assert not train & val
    assert len(train | val) == len({RINGS[min(k % 8, k % 5)] for k in range(120) if k % 7 != 3})


@needs_graph
def test_random_split_depends_on_the_split_seed_alone(file):
    first, again, other = (
        smiles_module(file, split="random", split_seed=split_seed, seed=seed).build_datasets(None)
        for split_seed, seed in ((0, 0), (0, 1), (1, 0))
    )
    sizes = [[graph.num_nodes for graph in parts.test] for parts in (first, again, other)]
    assert sizes[0] == sizes[1] != sizes[2]
    labels = [label for part in first[:3] for label in targets_of(part)]
    assert len(labels) == sum(label != "" for label, _ in smiles_rows())
    assert sum(labels) == sum(label == "1" for label, _ in smiles_rows())


@needs_graph
def test_reports_smiles_that_do_not_parse_once(file):
    file.write_text(file.read_text() + "not a molecule,0\nC1CC,1\n")
    datamodule = smiles_module(file, max_invalid=0.05)
    with pytest.warns(
        TPAUCWarning, match=r"2 of 105 labelled SMILES of .* \(line 122: 'not a molecule', line 123: 'C1CC'\)"
    ):
        datamodule.setup("fit")
    datamodule.setup("test")  # warns no more: the suite turns our warnings into errors
    with pytest.raises(
        DataError, match=r"2 of 105 .*, more than `max_invalid`=0.01 allows. Check `smiles_column`='smiles'"
    ):
        smiles_module(file, max_invalid=0.01).setup("fit")


@needs_graph
@pytest.mark.slow
def test_tox21_with_the_first_task_of_the_paper(shared_data, tmp_path):
    datamodule = SMILESDataModule(
        "tox21/tox21.csv.gz", "NR-AR", root=str(shared_data), cache_dir=str(tmp_path), train_with_val=True
    )
    with pytest.warns(TPAUCWarning, match=r"7 of 7439 labelled SMILES"):
        datamodule.setup(None)
    datasets = datamodule.build_datasets(None)
    counts = {name: (len(d), sum(targets_of(d))) for name, d in datasets._asdict().items() if d is not None}
    # The paper's OGB files, 7,265 measured molecules: 6,556 (4.2%) and 709 (4.5%).
    assert counts == {"train": (6707, 276), "test": (725, 33), "predict": (725, 33)}


# ---------------------------------------------------------------- OGB

SPLIT = {"train": [8, 1, 2, 30, *range(12, 28)], "valid": [0, 3, 9, 28, 29, 11], "test": [4, 5, 6, 7, 10, 31]}


@pytest.fixture
def ogb(tmp_path):
    """A data set of 32 molecules under the name of moltox21, and the molecules."""
    written = make_molecules(32, OGB_TASKS["ogbg-moltox21"])
    write_ogb(tmp_path, "ogbg-moltox21", written, SPLIT)
    return written


def ogb_module(root, **kwargs):
    return OGBMoleculesDataModule(root=str(root), **{"num_pos": 2, "num_neg": 3, **kwargs})


def assert_same_molecules(dataset, written, task):
    labelled = [molecule for molecule in written if not np.isnan(molecule["y"][task])]
    assert targets_of(dataset) == [int(molecule["y"][task]) for molecule in labelled]
    for graph, molecule in zip(dataset, labelled, strict=True):
        assert torch.equal(graph.x, torch.from_numpy(molecule["x"]))
        edges = {(int(a), int(b)): graph.edge_attr[k].tolist() for k, (a, b) in enumerate(graph.edge_index.T.tolist())}
        there = {
            tuple(bond): f for bond, f in zip(molecule["bonds"].tolist(), molecule["features"].tolist(), strict=True)
        }
        back = {(b, a): feature for (a, b), feature in there.items()}
        assert edges == {**there, **back}


@needs_graph
@pytest.mark.parametrize("task", [0, 5])
def test_ogbs_split_without_unlabelled_molecules(tmp_path, ogb, task):
    datasets = ogb_module(tmp_path, task=task).build_datasets(None)
    for name, part in (("train", "train"), ("val", "valid"), ("test", "test")):
        chosen = [ogb[row] for row in SPLIT[part]]
        assert any(np.isnan(molecule["y"][task]) for molecule in chosen)
        assert_same_molecules(getattr(datasets, name), chosen, task)


@needs_graph
def test_never_asks_on_the_terminal(tmp_path, ogb, monkeypatch):
    monkeypatch.setattr(builtins, "input", lambda prompt="": pytest.fail(f"asked {prompt}"))
    (tmp_path / "ogbg_moltox21" / "RELEASE_v1.txt").unlink()
    for download in (False, True):
        with pytest.raises(DataError, match=r"ogbg_moltox21/RELEASE_v1.txt does not exist. Set `root` "):
            ogb_module(tmp_path, download=download).prepare_data()


@needs_graph
def test_downloads_through_ogb(tmp_path, ogb, monkeypatch):
    """OGB's own steps, with the network replaced by a local archive."""
    archive = tmp_path / "tox21.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in (tmp_path / "ogbg_moltox21").rglob("*"):
            packed.write(path, "tox21" / path.relative_to(tmp_path / "ogbg_moltox21"))
    shutil.rmtree(tmp_path / "ogbg_moltox21")
    source = import_extra("ogb.graphproppred.dataset_pyg", "graph")
    asked = []
    monkeypatch.setattr(source, "decide_download", lambda url: asked.append(url) or True)
    monkeypatch.setattr(source, "download_url", lambda url, folder: shutil.copy(archive, f"{folder}/download.zip"))
    datamodule = ogb_module(tmp_path, download=True)
    datamodule.prepare_data()
    datamodule.setup("fit")
    assert_same_molecules(datamodule.build_datasets(None).train, [ogb[row] for row in SPLIT["train"]], 0)
    assert len(asked) == 1
    assert asked[0].endswith("tox21.zip")


@needs_graph
def test_names_and_tasks_are_ogbs():
    folder = Path(import_extra("ogb.graphproppred", "graph").__path__[0])
    with (folder / "master.csv").open(newline="") as file:
        master = {row[""]: row for row in csv.DictReader(file)}
    known = [name for name in master["num tasks"] if name.startswith("ogbg-mol")]
    binary = {
        name: int(master["num tasks"][name]) for name in known if master["task type"][name] == "binary classification"
    }
    binary.pop("ogbg-molchembl")  # not among the sets that OGB documents
    assert binary == OGB_TASKS
