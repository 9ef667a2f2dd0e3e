"""From a CSV file of SMILES and labels to packed graphs, once per content of the file."""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import importlib.metadata
import json
import logging
import math
import pickle
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from torch import Tensor

from lightning_tpauc.data.graphs import PackedGraphs
from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.extras import import_extra

__all__ = ("Molecules", "load_molecules", "read_smiles")

_log = logging.getLogger(__name__)

# Changes whenever the cached content does.
_CACHE_FORMAT = 1
_UNLABELLED = ("", "nan", "na", "none")


class Molecules(NamedTuple):
    """The labelled molecules of a file, and the scaffolds of those that a split is made over.

    Attributes:
        graphs: N labelled molecules.
        targets: int64 ``(N,)``, 0 or 1.
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


class SMILESRow(NamedTuple):
    """One row: its line in the file (from 2), SMILES and label (``None`` if not measured)."""

    line: int
    smiles: str
    label: int | None


def read_smiles(path: Path, smiles_column: str, target_column: str) -> Iterator[SMILESRow]:
    r"""Read a CSV file with a header, plain or with a name that ends in ``.gz``.

    Columns are separated by commas, or by tabs or semicolons where the header is. Blank lines are skipped.

    Args:
        path: the file.
        smiles_column: name of the column of SMILES.
        target_column: name of the column of labels: 0, 1 (also as ``1.0``), or nothing, ``nan``, ``NA``, ``None`` where
            there is no label.

    Raises:
        DataError: the file is no such text, a column is missing or there twice, a row is longer than the header, or a
            label is something else; the message names the line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "few.csv"
        >>> _ = path.write_text("smiles,active\nCCO,1\nC,\n")
        >>> [tuple(row) for row in read_smiles(path, "smiles", "active")]
        [(2, 'CCO', 1), (3, 'C', None)]
    """
    try:
        with _open_text(path) as file:
            reader = _csv_reader(file, path, {"smiles_column": smiles_column, "target_column": target_column})
            for row in reader:
                # a comma that should have been quoted moves what follows into other columns
                if any(row.get(None, ())):  # DictReader keeps what is left over there
                    msg = (
                        f"Line {reader.line_num} of {path} has more columns than the header. Put text that holds the "
                        "separator in quotes."
                    )
                    raise DataError(msg)
                label = _label(row[target_column], path, reader.line_num, target_column)
                yield SMILESRow(reader.line_num, (row[smiles_column] or "").strip(), label)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        msg = f"{path} can't be read as CSV in UTF-8, gzipped if its name ends in .gz: {error}."
        raise DataError(msg) from error


def _csv_reader(file: TextIO, path: Path, needed: dict[str, str]) -> csv.DictReader[str]:
    """A reader with the separator of the header, which must hold the needed columns (by argument) once."""
    for separator in ",\t;,":  # commas again for the message
        file.seek(0)
        reader = csv.DictReader(file, delimiter=separator)
        reader.fieldnames = columns = [column.strip() for column in reader.fieldnames or []]
        if set(needed.values()) <= set(columns):
            break
    for argument, column in needed.items():
        if columns.count(column) != 1:
            found = "no column" if column not in columns else f"{columns.count(column)} columns"
            msg = f"{path} has {found} {column!r} (`{argument}`); it has {', '.join(map(repr, columns)) or 'none'}."
            raise DataError(msg)
    return reader


def load_molecules(
    path: Path, smiles_column: str, target_column: str, *, scaffolds_of_all: bool, cache_dir: Path
) -> Molecules:
    """Read, parse and featurise a file, or load what an earlier call with the same content and columns stored.

    Unlabelled rows are dropped before any graph is built. The cache's key is a hash of the file's bytes, the columns
    and the versions that decide the result; its file is written under another name and renamed, so processes may start
    at once and a crash leaves no half-written cache. A damaged one is rebuilt.

    Args:
        path: the file; see :func:`read_smiles`.
        smiles_column: name of the column of SMILES.
        target_column: name of the column of labels.
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
    arrays = [content[name] for name in ("x", "edge_index", "edge_attr", "num_nodes", "num_edges")]
    rest = {name: content[name] for name in Molecules._fields if name != "graphs"}
    return Molecules(graphs=PackedGraphs(*arrays), **rest)


def _version_of_ogb() -> str | None:
    """What says how atoms and bonds are encoded, without the seconds that an import takes."""
    try:
        return importlib.metadata.version("ogb")
    except importlib.metadata.PackageNotFoundError:  # graphs from the cache need no ogb
        return None


def _open_text(path: Path) -> TextIO:
    # utf-8-sig: spreadsheets put a byte order mark before the first column's name
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _label(text: str | None, path: Path, line: int, column: str) -> int | None:
    text = (text or "").strip()
    if text.lower() in _UNLABELLED:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if value not in (0.0, 1.0):
        msg = f"Expected 0, 1 or nothing in column {column!r} of {path}, but line {line} has {text!r}."
        raise DataError(msg)
    return int(value)


def _build(path: Path, smiles_column: str, target_column: str, scaffolds_of_all: bool) -> dict[str, Any]:
    """Everything that the cache holds: tensors, numbers and tuples of strings."""
    rows = list(read_smiles(path, smiles_column, target_column))
    find_scaffold, smiles2graph = _scaffold_finder(), import_extra("ogb.utils.mol", "graph").smiles2graph
    graphs: list[dict[str, Any]] = []
    labelled: list[SMILESRow] = []
    scaffolds: dict[int, str] = {}
    invalid: list[tuple[int, str]] = []
    # rdkit reports every SMILES that does not parse on stderr; they are counted here instead.
    with import_extra("rdkit.rdBase", "graph").BlockLogs():
        for row in rows if scaffolds_of_all else [row for row in rows if row.label is not None]:
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
        "targets": torch.tensor([row.label for row in labelled]),
        "lines": torch.tensor([row.line for row in labelled]),
        "scaffold_lines": torch.tensor(list(scaffolds)),
        "scaffolds": torch.tensor([numbers[scaffold] for scaffold in scaffolds.values()]),
        "num_rows": len(rows),
        "num_unlabelled": sum(row.label is None for row in rows),
        "invalid": tuple(invalid),
    }


def _scaffold_finder() -> Callable[[str], str | None]:
    """Maps SMILES to its Bemis-Murcko scaffold, ``""`` without rings; ``None`` if it does not parse or has no atoms."""
    chem = import_extra("rdkit.Chem", "graph")
    murcko = import_extra("rdkit.Chem.Scaffolds.MurckoScaffold", "graph")

    def find(smiles: str) -> str | None:
        molecule = chem.MolFromSmiles(smiles)
        if molecule is None or molecule.GetNumAtoms() == 0:
            return None
        # With chirality, as OGB's splits were made.
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
    return {name: getattr(packed, name) for name in ("x", "edge_index", "edge_attr", "num_nodes", "num_edges")}


def _read_cache(path: Path) -> dict[str, Any] | None:
    """The stored content, or ``None`` if there is none or it can't be read."""
    if not path.is_file():
        return None
    try:
        content: dict[str, Any] = torch.load(path, weights_only=True)
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError) as error:
        _log.warning("The cache %s can't be read (%s) and is built again.", path, error)
        return None
    return content


def _write_cache(path: Path, content: dict[str, Any]) -> None:
    """Write under a name of its own in the same folder, then rename: readers see the whole file or none."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            torch.save(content, file)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        msg = f"Can't write to `cache_dir` {path.parent} ({error}). Set `cache_dir` to a folder that can be written."
        raise ArgumentError(msg) from error
