"""From a CSV file of SMILES and labels to packed graphs, cached by the content of the file."""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib.metadata
import itertools
import json
import logging
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from lightning_tpauc.data.sources.files import add_checksum, has_checksum
from lightning_tpauc.data.sources.graphs import PackedGraphs
from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.extras import import_extra
from lightning_tpauc.files import replacing

_UNLABELLED = ("", "nan", "na", "none")

_log = logging.getLogger(__name__)
# Part of the cache's key. Raise it when the cached content changes.
_CACHE_FORMAT = 1
_GRAPHS = ("x", "edge_index", "edge_attr", "num_nodes", "num_edges")


class SMILESRow(NamedTuple):
    """One row: its line in the file (from 2), SMILES and label (``None`` if not measured).

    With several columns of labels, ``label`` is a tuple of them; ``None`` if none of them was measured.
    """

    line: int
    smiles: str
    label: int | tuple[int | None, ...] | None


def read_smiles(path: Path, smiles_column: str, target_column: str | Sequence[str]) -> Iterator[SMILESRow]:
    r"""Read a CSV file with a header, plain or with a name that ends in ``.gz``.

    The separator is that of the header: commas, tabs or semicolons. Blank lines are skipped.

    Args:
        path: the file.
        smiles_column: name of the column of SMILES.
        target_column: name of the column of labels: 0, 1 (also as ``1.0``), or nothing, ``nan``, ``NA``, ``None`` where
            there is no label. Several names are those of several tasks.

    Raises:
        DataError: the file is no such text, a column is missing or there twice, a quote is never closed, a row is
            longer than the header, or a label is something else; the message names the line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "few.csv"
        >>> _ = path.write_text("smiles,active\nCCO,1\nC,\n")
        >>> [tuple(row) for row in read_smiles(path, "smiles", "active")]
        [(2, 'CCO', 1), (3, 'C', None)]
    """
    try:
        with _open_text(path) as file:
            targets = [target_column] if isinstance(target_column, str) else list(target_column)
            needed = [("smiles_column", smiles_column), *(("target_column", target) for target in targets)]
            reader, lines = _csv_reader(file, path, needed)
            for row in _rows(reader, lines, path):
                # An unquoted comma in a cell moves the cells behind it into other columns.
                if any(row.get(None, ())):  # DictReader keeps surplus cells under None.
                    msg = (
                        f"Line {reader.line_num} of {path} has more columns than the header. Put text that holds the "
                        "separator in quotes."
                    )
                    raise DataError(msg)
                labels = tuple(_label(row[target], path, reader.line_num, target) for target in targets)
                measured = any(label is not None for label in labels)
                label = labels[0] if isinstance(target_column, str) else labels if measured else None
                yield SMILESRow(reader.line_num, (row[smiles_column] or "").strip(), label)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        msg = f"{path} can't be read as CSV in UTF-8, gzipped if its name ends in .gz: {error}."
        raise DataError(msg) from error


class _Lines:
    """The lines of a file, followed by a mark. If a quote is never closed, the mark becomes part of a cell."""

    MARK = "\x03end"  # \x03 means "end of text". Before Python 3.11, csv refuses NUL.

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.ended = False

    def __iter__(self) -> Iterator[str]:
        return itertools.chain(self.file, self._end())

    def _end(self) -> Iterator[str]:
        self.ended = True
        yield self.MARK


def _rows(reader: csv.DictReader[str], lines: _Lines, path: Path) -> Iterator[dict[str | Any, str | Any]]:
    """The rows up to the mark. Without it, all rows behind a quote that is never closed would vanish in one cell."""
    last = reader.line_num
    for row in reader:
        if lines.ended:
            if next(iter(row.values())) != lines.MARK:
                msg = f"A quote in {path} is opened after line {last} and never closed. Close it, or remove it."
                raise DataError(msg)
            return
        yield row
        last = reader.line_num


def _csv_reader(file: TextIO, path: Path, needed: list[tuple[str, str]]) -> tuple[csv.DictReader[str], _Lines]:
    """A reader with the separator of the header, which must hold the needed columns (by argument) once."""
    for separator in ",\t;,":  # The last attempt, commas again, is for the message.
        file.seek(0)
        lines = _Lines(file)
        reader = csv.DictReader(lines, delimiter=separator)
        header = reader.fieldnames or []
        reader.fieldnames = columns = [] if lines.ended else [column.strip() for column in header]
        if {column for _, column in needed} <= set(columns):
            break
    for argument, column in needed:
        if columns.count(column) != 1:
            found = "no column" if column not in columns else f"{columns.count(column)} columns"
            msg = f"{path} has {found} {column!r} (`{argument}`); it has {', '.join(map(repr, columns)) or 'none'}."
            raise DataError(msg)
    return reader, lines


def _open_text(path: Path) -> TextIO:
    # Spreadsheets write a byte order mark before the first column's name, which utf-8-sig skips.
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _label(text: str | None, path: Path, line: int, column: str) -> int | None:
    text = (text or "").strip()
    if text.lower() in _UNLABELLED:
        return None
    try:
        value = math.nan if "_" in text else float(text)  # Python reads 0_1 as 1
    except ValueError:
        value = math.nan
    if value not in (0.0, 1.0):
        msg = f"Expected 0, 1 or nothing in column {column!r} of {path}, but line {line} has {text!r}."
        raise DataError(msg)
    return int(value)


class Molecules(NamedTuple):
    """The labelled molecules of a file, and the scaffolds of those that a split is made over.

    Attributes:
        graphs: N labelled molecules.
        targets: int64 ``(N,)``, 0 or 1; with several tasks float32 ``(N, K)``, nan where nothing was measured.
        lines: int64 ``(N,)``: line of each in the file; the header is line 1.
        scaffold_lines: int64 ``(M,)``: lines of the molecules that the scaffold split is made over.
        scaffolds: int64 ``(M,)``: number of the scaffold of each.
        num_rows: rows of the file.
        num_unlabelled: rows without a label.
        invalid: line and SMILES of labelled rows that don't parse.
    """

    graphs: PackedGraphs
    targets: Tensor
    lines: Tensor
    scaffold_lines: Tensor
    scaffolds: Tensor
    num_rows: int
    num_unlabelled: int
    invalid: tuple[tuple[int, str], ...]


def load_molecules(
    path: Path, smiles_column: str, target_column: str | list[str], *, scaffolds_of_all: bool, cache_dir: Path
) -> Molecules:
    """Read, parse and featurise a file, or load what an earlier call with the same content and columns stored.

    Unlabelled rows are dropped before graphs are built. The cache's key is a hash of the file's bytes, the columns and
    the versions of the libraries that determine the result. The cache is written atomically, so processes may start at
    the same time. A damaged cache is built again.

    Args:
        path: the file; see :func:`~lightning_tpauc.data.sources.smiles.read_smiles`.
        smiles_column: name of the column of SMILES.
        target_column: name of the column of labels, or names of several.
        scaffolds_of_all: also find the scaffolds of unlabelled molecules.
        cache_dir: where to store the result.

    Raises:
        DataError: the file is missing, can't be read as such, or holds no labelled molecule that parses.
        MissingExtraError: rdkit, ogb or torch_geometric is not installed.
    """
    rdkit = import_extra("rdkit", "graph")
    options = [_CACHE_FORMAT, rdkit.__version__, _version_of_ogb(), smiles_column, target_column, scaffolds_of_all]
    key = hashlib.sha256(path.read_bytes() + json.dumps(options).encode()).hexdigest()
    cached = cache_dir / f"{path.name.split('.')[0]}-{key[:20]}.pt"
    content = _read_cache(cached)
    if content is None:
        _log.info("Building graphs of the molecules in %s; later runs read %s.", path, cached)
        content = _build(path, smiles_column, target_column, scaffolds_of_all)
        _write_cache(cached, content)
    arrays = [content[name] for name in _GRAPHS]
    rest = {name: content[name] for name in Molecules._fields if name != "graphs"}
    return Molecules(graphs=PackedGraphs(*arrays), **rest)


def _version_of_ogb() -> str | None:
    """The version of ogb, which determines the encoding of atoms and bonds; an import would take seconds."""
    try:
        return importlib.metadata.version("ogb")
    except importlib.metadata.PackageNotFoundError:  # graphs from the cache need no ogb
        return None


def _build(path: Path, smiles_column: str, target_column: str | list[str], scaffolds_of_all: bool) -> dict[str, Any]:
    """Everything that the cache holds: tensors, numbers and tuples of strings."""
    rows = list(read_smiles(path, smiles_column, target_column))
    find_scaffold, smiles2graph = _scaffold_finder(), import_extra("ogb.utils.mol", "graph").smiles2graph
    graphs: list[dict[str, Any]] = []
    labelled: list[SMILESRow] = []
    scaffolds: dict[int, str] = {}
    invalid: list[tuple[int, str]] = []
    # rdkit writes every SMILES that does not parse to stderr. Here, they are counted instead.
    with import_extra("rdkit.rdBase", "graph").BlockLogs():
        wanted = rows if scaffolds_of_all else [row for row in rows if row.label is not None]
        for row in tqdm(wanted, f"Building graphs of {path.name}", leave=False, disable=None):  # on terminals
            scaffold = find_scaffold(row.smiles)
            if scaffold is not None:
                scaffolds[row.line] = scaffold
            if scaffold is not None and row.label is not None:
                graphs.append(smiles2graph(row.smiles))
                labelled.append(row)
            elif row.label is not None:
                invalid.append((row.line, row.smiles))
    if not labelled:
        msg = f"No row of {path} has both a label in {target_column!r} and a SMILES that parses ({len(rows)} rows)."
        raise DataError(msg)
    numbers = {scaffold: number for number, scaffold in enumerate(dict.fromkeys(scaffolds.values()))}
    return {
        **_pack(graphs),
        "targets": torch.tensor([_numbers(row.label) for row in labelled]),
        "lines": torch.tensor([row.line for row in labelled]),
        "scaffold_lines": torch.tensor(list(scaffolds)),
        "scaffolds": torch.tensor([numbers[scaffold] for scaffold in scaffolds.values()]),
        "num_rows": len(rows),
        "num_unlabelled": sum(row.label is None for row in rows),
        "invalid": tuple(invalid),
    }


def _numbers(label: Any) -> Any:
    """A label, or those of several tasks as floats."""
    return [math.nan if own is None else float(own) for own in label] if isinstance(label, tuple) else label


def _scaffold_finder() -> Callable[[str], str | None]:
    """Maps SMILES to its Bemis-Murcko scaffold, ``""`` without rings; ``None`` if it does not parse or has no atoms."""
    chem = import_extra("rdkit.Chem", "graph")
    murcko = import_extra("rdkit.Chem.Scaffolds.MurckoScaffold", "graph")

    def find(smiles: str) -> str | None:
        molecule = chem.MolFromSmiles(smiles)
        if molecule is None or molecule.GetNumAtoms() == 0:
            return None
        # OGB's splits were made with chirality.
        scaffold: str = murcko.MurckoScaffoldSmiles(mol=molecule, includeChirality=True)
        return scaffold

    return find


def _pack(graphs: list[dict[str, Any]]) -> dict[str, Tensor]:
    """OGB's graph dictionaries as the arrays of :class:`PackedGraphs`."""
    packed = PackedGraphs(
        torch.from_numpy(np.concatenate([graph["node_feat"] for graph in graphs])),
        torch.from_numpy(np.concatenate([graph["edge_index"] for graph in graphs], axis=1)),
        torch.from_numpy(np.concatenate([graph["edge_feat"] for graph in graphs])),
        torch.tensor([graph["num_nodes"] for graph in graphs]),
        torch.tensor([graph["edge_index"].shape[1] for graph in graphs]),
    )
    return {name: getattr(packed, name) for name in _GRAPHS}


def _read_cache(path: Path) -> dict[str, Any] | None:
    """The stored content; ``None`` if there is none, or the file is damaged."""
    if not path.is_file():
        return None
    if not has_checksum(path):
        _log.warning("The cache %s is damaged, or of an earlier version, and is built again.", path)
        return None
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def _write_cache(path: Path, content: dict[str, Any]) -> None:
    """Write the whole file or none."""
    try:
        with replacing(path) as file:
            torch.save(content, file)
            add_checksum(file)
    except OSError as error:
        msg = f"Can't write to `cache_dir` {path.parent} ({error}). Set `cache_dir` to a folder that can be written."
        raise ArgumentError(msg) from error
