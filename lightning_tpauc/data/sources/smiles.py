"""From a CSV file of SMILES and labels to packed graphs, cached by the content of the file."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from lightning_tpauc.atomic import replacing
from lightning_tpauc.data.sources.files import add_checksum, has_checksum
from lightning_tpauc.data.sources.graphs import PackedGraphs
from lightning_tpauc.data.sources.smiles_csv import SMILESRow, read_smiles
from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.extras import import_extra

__all__ = ("Molecules", "load_molecules")

_log = logging.getLogger(__name__)

# Part of the cache's key. Raise it when the cached content changes.
_CACHE_FORMAT = 1
_GRAPHS = ("x", "edge_index", "edge_attr", "num_nodes", "num_edges")


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
        path: the file; see :func:`~lightning_tpauc.data.sources.smiles_csv.read_smiles`.
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
