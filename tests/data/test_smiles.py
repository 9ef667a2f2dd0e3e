"""Reading SMILES and labels from tables of all kinds, and the graphs made of them."""

import warnings

import numpy as np
import pytest
import torch

from lightning_tpauc.data import molecules as smiles
from lightning_tpauc.data.molecules import SMILESDataModule, read_smiles
from lightning_tpauc.errors import DataError, TPAUCWarning
from lightning_tpauc.extras import import_extra
from tests.data.test_molecules import needs_graph
from tests.helpers.smiles_rows import ROWS, write_csv


@pytest.mark.parametrize("name", ["few.csv", "few.csv.gz"])
def test_reads_lines_labels_and_smiles(tmp_path, name):
    lines, smiles, labels = zip(*read_smiles(write_csv(tmp_path / name), "smiles", ["active"]), strict=True)
    assert lines == tuple(range(2, 2 + len(ROWS)))
    assert smiles == tuple(text for _, text, _ in ROWS)
    nan = np.nan
    expected = [[0], [1], [nan], [1], [0], [1], [nan], [0], [0], [0], [nan]]
    assert np.array_equal(labels, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("smiles\tactive\nCCO\t1\nC\t0\n", [(2, "CCO", [1.0]), (3, "C", [0.0])]),
        ("\ufeffsmiles;name;active\r\nCCO;a,b;1.0\r\n", [(2, "CCO", [1.0])]),
        (" active , smiles \n\n1, CCO\n\n\n0,C\n", [(3, "CCO", [1.0]), (6, "C", [0.0])]),
        ('smiles,name,active\nCCO,"a, b",1\nC,"c\nd",0\n', [(2, "CCO", [1.0]), (4, "C", [0.0])]),
    ],
    ids=["tabs", "semicolons, of a spreadsheet", "spaces and blank lines", "quotes"],
)
def test_reads_odd_tables(tmp_path, text, rows):
    (tmp_path / "odd.csv").write_text(text, newline="", encoding="utf-8")
    assert list(read_smiles(tmp_path / "odd.csv", "smiles", ["active"])) == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "name,smiles,active\na,C,1\nb,1-x,CC,0\n",
            "Line 3 of .*odd.csv has not 3 cells, as the header has. Put text in quotes",
        ),
        ("smiles,active,active\nC,1,0\n", r"odd.csv has 2 columns 'active'; it has \['smiles', 'a"),
        ('smiles,active,note\nC,1,"a""b"\n\nCC,1,"x\nCCC,0,y\nC,0,z', r"odd.csv can't be read as CSV"),
    ],
    ids=["unquoted comma", "column twice", "open quote"],
)
def test_refuses_tables_that_would_be_read_wrongly(tmp_path, text, message):
    (tmp_path / "odd.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        list(read_smiles(tmp_path / "odd.csv", "smiles", ["active"]))


@pytest.mark.parametrize(("smiles", "target"), [("SMILES", "active"), ("smiles", "toxic")])
def test_names_a_missing_column_and_those_that_are_there(tmp_path, smiles, target):
    missing = "SMILES" if smiles == "SMILES" else "toxic"
    with pytest.raises(DataError, match=rf"has no columns '{missing}'; it has \['id', 'active', 'smiles'\]"):
        list(read_smiles(write_csv(tmp_path / "few.csv"), smiles, [target]))


@pytest.mark.parametrize("label", ["2", "-1", "yes", "0_1", "inf"])
def test_names_line_and_value_of_a_wrong_label(tmp_path, label):
    path = write_csv(tmp_path / "few.csv", [("0", "C", True), (label, "CC", True)])
    with pytest.raises(
        DataError, match=rf"Expected 0, 1 or nothing in column 'active' of .*few.csv, but line 3 has '{label}'"
    ):
        list(read_smiles(path, "smiles", ["active"]))


def load(path, cache, column="active", **kwargs):
    """What was read, and the warnings."""
    arguments = {"root": str(path.parent), "cache_dir": str(cache), "max_invalid": 1.0, "fractions": (1.0, 0.0, 0.0)}
    datamodule = SMILESDataModule(path.name, column, **arguments, **kwargs)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        datamodule.build_datasets(None)
    return datamodule.molecules, [str(warning.message) for warning in said if warning.category is TPAUCWarning]


@needs_graph
def test_graphs_are_ogbs_in_the_order_of_the_file(tmp_path, capfd):
    molecules, (said,) = load(write_csv(tmp_path / "few.csv"), tmp_path)
    kept = [k for k, (label, _, parses) in enumerate(ROWS) if parses and label not in ("", "nan", "NA")]
    assert molecules.lines.tolist() == [k + 2 for k in kept]
    assert molecules.targets.tolist() == [int(float(ROWS[k][0])) for k in kept]
    smiles2graph = import_extra("ogb.utils.mol", "graph").smiles2graph
    for graph, k in zip(molecules.graphs, kept, strict=True):
        expected = smiles2graph(ROWS[k][1])
        for ours, ogbs in (("x", "node_feat"), ("edge_index", "edge_index"), ("edge_attr", "edge_feat")):
            assert torch.equal(graph[ours], torch.from_numpy(expected[ogbs])), (ROWS[k], ours)
    assert "(line 6: '', line 7: 'not a molecule', line 10: 'C(C)(C)(C)(C)C')" in said
    assert "SMILES Parse Error" not in capfd.readouterr().err


@needs_graph
def test_built_once_per_content_and_columns(tmp_path, monkeypatch):
    path = write_csv(tmp_path / "few.csv")
    first, _ = load(path, tmp_path / "cache")
    build, built = smiles._build, []
    monkeypatch.setattr(smiles, "_build", lambda *arguments: built.append(arguments) or build(*arguments))
    again, _ = load(path.rename(tmp_path / "other.csv").rename(path), tmp_path / "cache")
    assert not built
    for one, other in zip(first.graphs, again.graphs, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in ("x", "edge_index", "edge_attr"))
    assert torch.equal(first.targets, again.targets)
    load(path, tmp_path / "cache", split="random")
    assert len(built) == 1
    load(write_csv(path, ROWS[:5]), tmp_path / "cache")
    assert len(built) == 2
