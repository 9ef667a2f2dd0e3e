"""Reading SMILES and labels from tables of all kinds."""

import pytest

from lightning_tpauc.data.sources.smiles import read_smiles
from lightning_tpauc.errors import DataError
from tests.helpers.smiles_rows import ROWS, write_csv


@pytest.mark.parametrize("name", ["few.csv", "few.csv.gz"])
def test_reads_lines_labels_and_smiles(tmp_path, name):
    rows = list(read_smiles(write_csv(tmp_path / name), "smiles", "active"))
    assert [row.line for row in rows] == list(range(2, 2 + len(ROWS)))
    assert [row.smiles for row in rows] == [text for _, text, _ in ROWS]
    assert [row.label for row in rows] == [0, 1, None, 1, 0, 1, None, 0, 0, 0, None]


def test_reads_what_a_spreadsheet_writes(tmp_path):
    path = tmp_path / "sheet.csv"
    path.write_bytes('\ufeffsmiles,active\r\n"CCO" , 1\r\n'.encode())
    assert [tuple(row) for row in read_smiles(path, "smiles", "active")] == [(2, "CCO", 1)]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("smiles\tactive\nCCO\t1\nC\t0\n", [(2, "CCO", 1), (3, "C", 0)]),
        ("smiles;name;active\nCCO;a,b;1\n", [(2, "CCO", 1)]),
        (" active , smiles \n\n1, CCO\n\n\n,C\n", [(3, "CCO", 1), (6, "C", None)]),
        ('smiles,"the\nname",active\nCCO,"a, b",1\nC,"c\nd",0\n', [(3, "CCO", 1), (5, "C", 0)]),
        ("smiles,active\nCCO,1,,\nC\n", [(2, "CCO", 1), (3, "C", None)]),
        ("active,smiles,y\r0,C,1\r", [(2, "C", 0)]),
    ],
    ids=["tabs", "semicolons", "spaces and blank lines", "quotes", "empty and missing ends", "old Mac"],
)
def test_reads_odd_tables(tmp_path, text, rows):
    (tmp_path / "odd.csv").write_text(text, newline="")
    assert [tuple(row) for row in read_smiles(tmp_path / "odd.csv", "smiles", "active")] == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,smiles,active\na,C,1\nb,1-x,CC,0\n", "Line 3 of .*odd.csv has more columns than the header. Put text"),
        ("smiles,active,active\nC,1,0\n", r"odd.csv has 2 columns 'active' \(`target_column`\); it has 'smiles', 'a"),
        ("", r"odd.csv has no column 'smiles' \(`smiles_column`\); it has none"),
        ("smiles\ttoxic\nC\t1\n", r"has no column 'smiles' .*; it has 'smiles\\ttoxic'"),
        ('smiles,active,note\nC,1,"a""b"\n\nCC,1,"x\nCCC,0,y\nC,0,z', r"quote in .*odd.csv is opened after line 2 and"),
        ('name,smiles,active\n"a,C,1\nb,C,0\n', r"quote in .*odd.csv is opened after line 1 and never closed"),
        ('"smiles,active\nC,1\n', r"has no column 'smiles' .*; it has none"),
    ],
    ids=["unquoted comma", "column twice", "empty", "tabs, other name", "open quote", "at once", "in the header"],
)
def test_refuses_tables_that_would_be_read_wrongly(tmp_path, text, message):
    (tmp_path / "odd.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        list(read_smiles(tmp_path / "odd.csv", "smiles", "active"))


@pytest.mark.parametrize(("column", "argument"), [("SMILES", "smiles_column"), ("toxic", "target_column")])
def test_names_a_missing_column_and_those_that_are_there(tmp_path, column, argument):
    columns = {"smiles_column": "smiles", "target_column": "active", argument: column}
    with pytest.raises(DataError, match=rf"has no column '{column}' \(`{argument}`\); it has 'id', 'active', 'smiles'"):
        list(read_smiles(write_csv(tmp_path / "few.csv"), **columns))


@pytest.mark.parametrize("label", ["2", "-1", "0.5", "yes", "0_1", "1_", "0_0", "inf"])
def test_names_line_and_value_of_a_wrong_label(tmp_path, label):
    path = write_csv(tmp_path / "few.csv", [("0", "C", True), (label, "CC", True)])
    with pytest.raises(
        DataError, match=rf"Expected 0, 1 or nothing in column 'active' of .*few.csv, but line 3 has '{label}'"
    ):
        list(read_smiles(path, "smiles", "active"))


@pytest.mark.parametrize(
    ("name", "content"), [("a.csv.gz", b"smiles,active\n"), ("b.csv", b"smiles,active\n\xff\xfe,1\n")]
)
def test_refuses_what_is_no_text(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=r"can't be read as CSV in UTF-8, gzipped if its name ends in .gz"):
        list(read_smiles(tmp_path / name, "smiles", "active"))


@pytest.mark.parametrize("position", [30, 60, 90])
def test_refuses_damaged_gzip(tmp_path, position):
    path = write_csv(tmp_path / "few.csv.gz", ROWS * 9)
    content = bytearray(path.read_bytes())
    content[position : position + 4] = b"\xff" * 4
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"few.csv.gz can't be read as CSV in UTF-8, gzipped"):
        list(read_smiles(path, "smiles", "active"))
