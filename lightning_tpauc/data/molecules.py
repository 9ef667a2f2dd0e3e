"""Molecules as graphs: from a file of SMILES, or from OGB."""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib.metadata
import json
import logging
import math
import pickle
import warnings
import zlib
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset
from tqdm import tqdm

from lightning_tpauc.data.examples import Datasets
from lightning_tpauc.data.labels import binary_labels
from lightning_tpauc.data.source_files import (
    GivenSplitDataModule,
    default_cache_dir,
    download_missing,
    require_file,
)
from lightning_tpauc.data.splits import label_parts
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning
from lightning_tpauc.extras import import_extra
from lightning_tpauc.files import replacing
from lightning_tpauc.functional.checks import check_choice, is_whole

_log = logging.getLogger(__name__)
# Part of the cache's key. Raise it when the cached content changes.
_CACHE_FORMAT = 2
_UNLABELLED = ("", "nan", "na", "none")

#: OGB's sets of molecules with 0/1 labels, and how many tasks (columns of labels) each has.
OGB_TASKS = {
    "ogbg-molbace": 1,
    "ogbg-molbbbp": 1,
    "ogbg-molclintox": 2,
    "ogbg-molhiv": 1,
    "ogbg-molmuv": 17,
    "ogbg-molpcba": 128,
    "ogbg-molsider": 27,
    "ogbg-moltox21": 12,
    "ogbg-moltoxcast": 617,
}


class SMILESDataModule(GivenSplitDataModule):
    r"""Molecules of a CSV file with a column of SMILES and columns of 0/1 labels, as graphs with OGB's features.

    Rows without a label are dropped. SMILES that rdkit can't parse are skipped and reported; more than ``max_invalid``
    are an error. Graphs are built once and cached under a key of the file's content. Inputs are PyG batches for
    :class:`~lightning_tpauc.models.GIN`. After ``setup``, :attr:`molecules` holds the line of each molecule.

    Args:
        file: CSV file with a header, possibly gzipped (``.gz``), relative to ``root``.
        target_column: name of the column of labels, or names of several, which are trained as several tasks at once.
        smiles_column: name of the column of SMILES.
        root: folder of the file.
        split: ``"scaffold"`` keeps molecules of one Bemis-Murcko scaffold together, so that the test set holds rarer
            scaffolds, see :func:`~lightning_tpauc.data.molecules.scaffold_split`; ``"random"`` shuffles each
            class by ``split_seed``.
        fractions: shares of training, validation and test part.
        split_over: the molecules that the scaffold split is made over: ``"all"`` molecules of the file, as OGB does, or
            only the ``"labelled"`` ones. Finding all scaffolds takes about a minute for the 93,127 molecules of MUV,
            once.
        max_invalid: share of labelled rows whose SMILES may fail to parse, in [0, 1].
        cache_dir: where to cache graphs; ``None``: ``$XDG_CACHE_HOME/lightning_tpauc`` or
            ``~/.cache/lightning_tpauc``.
        download: whether to download a missing ``tox21.csv.gz`` or ``muv.csv.gz`` of MoleculeNet to ``root``.
        train_with_val: see :class:`~lightning_tpauc.data.source_files.GivenSplitDataModule`.
        **kwargs: arguments of :class:`~lightning_tpauc.PosNegDataModule`.

    Raises:
        ArgumentError: an argument is out of range; in ``prepare_data``: ``download`` of a file without a known source.
        DataError: in ``prepare_data`` and ``setup``: the file is missing or not as described, or too many SMILES don't
            parse.
        MissingExtraError: there, too: rdkit, ogb or torch_geometric is not installed.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> rows = [f"{'C' * n}O,{n % 3 % 2}" for n in range(1, 31)]
        >>> _ = Path(folder, "alcohols.csv").write_text("smiles,active\n" + "\n".join(rows))
        >>> data = SMILESDataModule("alcohols.csv", "active", root=folder, cache_dir=folder, split="random", num_pos=2,
        ...                         num_neg=4)
        >>> data.setup("fit")
        >>> next(iter(data.train_dataloader())).inputs.num_graphs
        6
    """

    def __init__(
        self,
        file: str,
        target_column: list[str] | str,
        smiles_column: str = "smiles",
        root: str = ".",
        *,
        split: Literal["scaffold", "random"] = "scaffold",
        fractions: tuple[float, float, float] = (0.8, 0.1, 0.1),
        split_over: Literal["all", "labelled"] = "all",
        max_invalid: float = 0.01,
        cache_dir: str | None = None,
        download: bool = False,
        train_with_val: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(train_with_val=train_with_val, **kwargs)
        self.path = Path(root) / file
        self.target_column, self.smiles_column = _columns(target_column), smiles_column
        self.split, self.fractions, self.split_over = split, fractions, split_over
        self.max_invalid, self.download = max_invalid, download
        self.cache_dir = default_cache_dir() if cache_dir is None else Path(cache_dir)
        #: What was read, after ``setup``.
        self.molecules: Molecules | None = None
        check_fractions(fractions)
        check_choice(split, "split", ("scaffold", "random"))
        check_choice(split_over, "split_over", ("all", "labelled"))
        if not 0.0 <= max_invalid <= 1.0:
            msg = f"Expected `max_invalid` to be in [0, 1], but got {max_invalid!r}."
            raise ArgumentError(msg)

    def prepare_data(self) -> None:
        """Download if asked to and needed, build and cache the graphs, in one process."""
        if self.download:
            download_missing(self.path)
        self._read()

    def load(self) -> Datasets:
        """Read the cache and split."""
        self.molecules = molecules = self._read()
        self._report_invalid(molecules)
        columns = None if isinstance(self.target_column, str) else self.target_column
        if self.split == "random":
            names = tuple(columns or (self.target_column,))
            labels = binary_labels(molecules.targets).reshape(-1, len(names))
            rows_of_parts = label_parts(labels, np.array(self.fractions), self.split_seed, names)
            parts = [torch.from_numpy(part) for part in rows_of_parts]
        else:
            row_of_line = {line: row for row, line in enumerate(molecules.lines.tolist())}
            lines = molecules.scaffold_lines.tolist()
            dealt = scaffold_split(molecules.scaffolds.tolist(), self.fractions)
            rows = ([row_of_line[lines[k]] for k in part if lines[k] in row_of_line] for part in dealt)
            parts = [torch.tensor(sorted(part), dtype=torch.int64) for part in rows]
        self._check_parts([molecules.targets[part] for part in parts])
        of_line = dict(zip(molecules.scaffold_lines.tolist(), molecules.scaffolds.tolist(), strict=True))
        scaffolds = np.array([of_line[line] for line in molecules.lines.tolist()])
        everything = GraphDataset(molecules.graphs, molecules.targets, None, columns, scaffolds)
        return _datasets(everything, parts, self.train_with_val)

    def _read(self) -> Molecules:
        require_file(self.path)
        everything = self.split == "scaffold" and self.split_over == "all"
        return load_molecules(
            self.path, self.smiles_column, self.target_column, scaffolds_of_all=everything, cache_dir=self.cache_dir
        )

    def _check_parts(self, targets: Sequence[Tensor]) -> None:
        """Refuse a split without positives to train on; say which labels lack a class in a part that is evaluated."""
        names = [self.target_column] if isinstance(self.target_column, str) else self.target_column
        remedy = f"Set {'' if self.split == 'random' else '`split=random` or '}other `fractions`, or other columns."
        train = torch.cat(list(targets[:2])) if self.train_with_val else targets[0]
        if self.fractions[0] > 0 and not bool((train == 1).any()):
            msg = f"The {self.split} split of {self.path} leaves no positive of {names} to train on. {remedy}"
            raise DataError(msg)
        lacking = []
        for part, labels in (("validation", targets[1]), ("test", targets[2])):
            of_each = labels if labels.ndim == 2 else labels[:, None]
            both = ((of_each == 1).any(0) & (of_each == 0).any(0)).tolist()
            if len(labels) and not (part == "validation" and self.train_with_val):
                lacking += [f"{name!r} in the {part} part" for name, fits in zip(names, both, strict=True) if not fits]
        if lacking:
            rank_zero_warn(
                f"The {self.split} split of {self.path} leaves one class only of {', '.join(lacking)}; TPAUC is nan "
                f"there. {remedy}",
                category=TPAUCWarning,
            )

    def _report_invalid(self, molecules: Molecules) -> None:
        count, total = len(molecules.invalid), len(molecules.invalid) + len(molecules.targets)
        if count == 0:
            return
        shown = ", ".join(f"line {line}: {smiles!r}" for line, smiles in molecules.invalid[:5])
        found = f"{count} of {total} labelled SMILES of {self.path} don't parse ({shown}{', ...' if count > 5 else ''})"
        if count > self.max_invalid * total:
            msg = (
                f"{found}, more than `max_invalid`={self.max_invalid} allows. Check `smiles_column`="
                f"{self.smiles_column!r}, repair the file, or raise `max_invalid`."
            )
            raise DataError(msg)
        rank_zero_warn(f"{found} and are skipped.", category=TPAUCWarning)


class OGBMoleculesDataModule(GivenSplitDataModule):
    """A set of molecules of the Open Graph Benchmark, with OGB's scaffold split: one task, several or all.

    Molecules without a label in the task, or in any of several, are dropped. The paper trains with the validation part
    and makes its folds from both: ``train_with_val=True, num_folds=5, fold=0``. Inputs are PyG batches for
    :class:`~lightning_tpauc.models.GIN`.

    Args:
        name: one of :data:`OGB_TASKS`.
        task: number of the column of labels; the paper uses 0 of ``ogbg-moltox21`` and 1 of ``ogbg-molmuv``. Several
            numbers, or ``None`` for all columns, are trained as several tasks at once.
        root: folder that holds the data set's folder, ``ogbg_moltox21`` for instance, as OGB lays it out.
        download: whether to download a missing data set to ``root``.
        train_with_val: see :class:`~lightning_tpauc.data.source_files.GivenSplitDataModule`.
        **kwargs: arguments of :class:`~lightning_tpauc.PosNegDataModule`.

    Raises:
        ArgumentError: ``name`` is unknown, or it has no such task.
        DataError: in ``prepare_data`` and ``setup``: the folder is missing, incomplete or damaged.
        MissingExtraError: there, too: ogb or torch_geometric is not installed.

    Example:
        >>> data = OGBMoleculesDataModule("ogbg-molmuv", task=1, train_with_val=True, num_folds=5, fold=0)
        >>> data.folder.as_posix()
        'data/ogbg_molmuv'
    """

    def __init__(
        self,
        name: str = "ogbg-moltox21",
        task: int | list[int] | None = 0,
        root: str = "data",
        *,
        download: bool = False,
        train_with_val: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(train_with_val=train_with_val, **kwargs)
        if name not in OGB_TASKS:
            msg = f"Expected `name` to be one of {', '.join(OGB_TASKS)}, but got {name!r}."
            raise ArgumentError(msg)
        self.dataset_name, self.task = name, task
        #: Numbers of the columns of labels.
        self.tasks = list(range(OGB_TASKS[name])) if task is None else _as_list(task)
        wrong = [number for number in self.tasks if not is_whole(number) or not 0 <= number < OGB_TASKS[name]]
        if wrong or not self.tasks or len(set(self.tasks)) < len(self.tasks):
            what = "different numbers " if isinstance(task, (list, tuple)) else ""
            msg = f"Expected `task` to be {what}in 0 .. {OGB_TASKS[name] - 1} for {name}, but got {task!r}."
            raise ArgumentError(msg)
        self.root, self.download = Path(root), download

    @property
    def folder(self) -> Path:
        """The data set's folder; OGB prefers one whose name ends in ``_pyg``."""
        folder = self.root / self.dataset_name.replace("-", "_")
        variant = folder.with_name(f"{folder.name}_pyg")
        return variant if variant.exists() else folder

    def prepare_data(self) -> None:
        """Download if asked to, and let OGB process the files, in one process."""
        self._open()

    def load(self) -> Datasets:
        """Pack the molecules with a label."""
        dataset, split = self._open()
        with warnings.catch_warnings():
            # PyG warns about reading the joint storage instead of single graphs. Here, that is intended.
            warnings.simplefilter("ignore", UserWarning)
            storage = dataset.data
        slices = dataset.slices
        graphs = Graphs(
            storage.x, storage.edge_index, storage.edge_attr, slices["x"].diff(), slices["edge_index"].diff()
        )
        labels = storage.y[:, self.tasks]
        labelled = ~labels.isnan().all(dim=1)
        parts = [split[part][labelled[split[part]]] for part in ("train", "valid", "test")]
        if len(self.tasks) == 1:
            everything = GraphDataset(graphs, labels[:, 0])
        else:
            names = ogb_label_names(self.folder, OGB_TASKS[self.dataset_name])
            everything = GraphDataset(graphs, labels, None, [names[task] for task in self.tasks])
        return _datasets(everything, parts, self.train_with_val)

    def _open(self) -> tuple[Any, dict[str, Tensor]]:
        """OGB's data set and its split. Raises an error where ogb would ask on the terminal."""
        graphproppred = import_extra("ogb.graphproppred", "graph")
        if not self.download or self.folder.exists():
            check_ogb_folder(self.folder)
        data = import_extra("torch_geometric.data.data", "graph")
        storage = import_extra("torch_geometric.data.storage", "graph")
        allowed = [data.DataEdgeAttr, data.DataTensorAttr, storage.GlobalStorage]
        try:
            # ogb 1.3.6 passes no `weights_only` to torch.load; see snap-stanford/ogb#497
            with torch.serialization.safe_globals(allowed):
                dataset = graphproppred.PygGraphPropPredDataset(self.dataset_name, root=str(self.root))
                return dataset, dataset.get_idx_split()
        except (EOFError, LookupError, OSError, RuntimeError, ValueError, pickle.UnpicklingError, zlib.error) as error:
            msg = (
                f"{self.folder} can't be read ({type(error).__name__}: {error}). Remove {self.folder / 'processed'}, "
                "which is then made again from the raw files; if those are damaged, get the whole folder again."
            )
            raise DataError(msg) from error


def check_ogb_folder(folder: Path) -> None:
    """Refuse a folder for which ogb would ask on the terminal or download files without being asked.

    Raises:
        DataError: if one of its files is missing.
    """
    files = ("RELEASE_v1.txt", *(f"raw/{name}.csv.gz" for name in ("edge", "node-feat", "edge-feat")))
    missing = next((name for name in files if not (folder / name).is_file()), None)
    if missing is not None:
        msg = (
            f"{folder} is not complete: {missing} is missing. Set `--data.root` to the folder that holds it, copy the "
            "whole folder, or remove it and set `--data.download true`."
        )
        raise DataError(msg)


def ogb_label_names(folder: Path, count: int) -> list[str]:
    """The names of a data set's labels from the table of its molecules, or numbers if it does not have it.

    Example:
        >>> ogb_label_names(Path("nowhere"), 3)
        ['0', '1', '2']
    """
    header: list[str] = []
    with suppress(OSError), gzip.open(folder / "mapping" / "mol.csv.gz", "rt", encoding="utf-8") as file:
        header = next(csv.reader(file), [])
    names = [name for name in header if name not in ("smiles", "mol_id")]
    return names if len(set(names)) == count == len(names) else list(map(str, range(count)))


def _as_list(task: int | Sequence[int]) -> list[int]:
    return list(task) if isinstance(task, (list, tuple)) else [cast(int, task)]


def _columns(target_column: Any) -> Any:
    """The name of a column, or names of several; a list of one is that one."""
    names = [target_column] if isinstance(target_column, str) else list(target_column)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        msg = f"Expected `target_column` to be the name of a column, or different names, but got {target_column!r}."
        raise ArgumentError(msg)
    return names if len(names) > 1 else names[0]


def _datasets(everything: GraphDataset, parts: Sequence[Tensor], train_with_val: bool) -> Datasets:
    """Training, validation and test set from positions in one data set; ``None`` where a part is empty."""
    train, val, test = parts
    if train_with_val:
        train, val = torch.cat([train, val]), val[:0]
    return Datasets(*(everything.subset(part) if len(part) else None for part in (train, val, test)))


class Graphs(NamedTuple):
    """All graphs of a set: the nodes one after the other, and the same for the edges.

    Attributes:
        x: node features ``(nodes, F)``.
        edge_index: int64 ``(2, edges)``; nodes are numbered from 0 within their graph.
        edge_attr: edge features ``(edges, G)``.
        num_nodes: int64 ``(N,)``, nodes of each graph.
        num_edges: int64 ``(N,)``, edges of each graph.
    """

    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor
    num_nodes: Tensor
    num_edges: Tensor


class GraphDataset(Dataset[Any]):
    """Labelled graphs; items are PyG graphs without their label, which is in ``targets``.

    Args:
        graphs: all graphs.
        targets: labels of the chosen graphs: int64 ``(n,)``, 0 or 1, or float ``(n, K)``, nan where not measured.
        rows: int64 ``(n,)``: the chosen graphs; all if ``None``.
        label_names: names of several labels.
        scaffolds: number of each chosen molecule's scaffold, where known.

    Example:
        >>> graphs = Graphs(torch.arange(3)[:, None], torch.tensor([[0, 1], [1, 0]]), torch.zeros(2, 1),
        ...                 torch.tensor([2, 1]), torch.tensor([2, 0]))
        >>> GraphDataset(graphs, torch.tensor([1, 0]))[0]
        Data(x=[2, 1], edge_index=[2, 2], edge_attr=[2, 1])
    """

    def __init__(
        self,
        graphs: Graphs,
        targets: Tensor,
        rows: Tensor | None = None,
        label_names: Sequence[str] | None = None,
        scaffolds: NDArray[np.int64] | None = None,
    ) -> None:
        self.graphs, self.label_names, self.scaffolds = graphs, label_names, scaffolds
        self.targets = targets
        self._rows = torch.arange(len(targets)) if rows is None else rows
        self._nodes = torch.cat([torch.zeros(1, dtype=torch.int64), graphs.num_nodes.cumsum(0)])
        self._edges = torch.cat([torch.zeros(1, dtype=torch.int64), graphs.num_edges.cumsum(0)])
        self._item_type = import_extra("torch_geometric.data", "graph").Data

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Any:
        graph = int(self._rows[row])
        nodes, edges = (slice(int(ends[graph]), int(ends[graph + 1])) for ends in (self._nodes, self._edges))
        return self._item_type(
            x=self.graphs.x[nodes], edge_index=self.graphs.edge_index[:, edges], edge_attr=self.graphs.edge_attr[edges]
        )

    def subset(self, index: Tensor) -> GraphDataset:
        """The graphs at the positions ``index`` (int64, ``(M,)``) alone."""
        scaffolds = None if self.scaffolds is None else self.scaffolds[index.numpy()]
        return GraphDataset(self.graphs, self.targets[index], self._rows[index], self.label_names, scaffolds)


def scaffold_split(
    scaffolds: Sequence[Hashable], fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)
) -> tuple[list[int], list[int], list[int]]:
    """Deal whole scaffold groups to training, validation and test set, the largest groups first.

    This is the deterministic rule of MoleculeNet and OGB. Groups are sorted by size, largest first; of two groups of
    one size, the one whose first molecule comes later is first. A group goes to the training set unless that would
    exceed its fraction. Otherwise it goes to the validation set unless training and validation set together would
    exceed theirs. All other groups, with the rare scaffolds, go to the test set.

    Args:
        scaffolds: the scaffold of each of n molecules.
        fractions: shares of training, validation and test set; they add up to 1.

    Returns:
        Positions ``0 .. n - 1`` of the three parts, in the order in which they were dealt.

    Raises:
        ArgumentError: a fraction is negative, or they don't add up to 1.

    Example:
        >>> scaffold_split(["ring", "chain", "ring", "cage", "ring"], (0.6, 0.2, 0.2))
        ([0, 2, 4], [3], [1])
    """
    check_fractions(fractions)
    groups: dict[Hashable, list[int]] = {}
    for position, scaffold in enumerate(scaffolds):
        groups.setdefault(scaffold, []).append(position)
    # With rounding, 0.8 * 10 + 0.1 * 10 may be slightly below 9.
    train_limit = fractions[0] * len(scaffolds) + 1e-9
    both_limit = (fractions[0] + fractions[1]) * len(scaffolds) + 1e-9
    train: list[int] = []
    val: list[int] = []
    test: list[int] = []
    for group in sorted(groups.values(), key=lambda members: (len(members), members[0]), reverse=True):
        if len(train) + len(group) <= train_limit:
            train += group
        elif len(train) + len(val) + len(group) <= both_limit:
            val += group
        else:
            test += group
    return train, val, test


def check_fractions(fractions: Sequence[float]) -> None:
    """Raise :class:`ArgumentError` unless ``fractions`` are three numbers >= 0 that add up to 1."""
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1.0) > 1e-6:
        msg = f"Expected `fractions` to be three numbers >= 0 that add up to 1, but got {tuple(fractions)!r}."
        raise ArgumentError(msg)


class SMILESRow(NamedTuple):
    """One row: its line in the file (from 2), SMILES, and labels as floats, nan where not measured."""

    line: int
    smiles: str
    labels: tuple[float, ...]

    @property
    def is_labelled(self) -> bool:
        """Whether a label was measured."""
        return not all(map(math.isnan, self.labels))


def read_smiles(path: Path, smiles_column: str, target_column: str | Sequence[str]) -> Iterator[SMILESRow]:
    r"""Read a CSV file with a header, plain or with a name that ends in ``.gz``.

    The separator is that of the header: commas, tabs or semicolons. Blank lines are skipped.

    Args:
        path: the file.
        smiles_column: name of the column of SMILES.
        target_column: name of the column of labels: 0, 1 (also as ``1.0``), or nothing, ``nan``, ``NA``, ``None`` where
            there is no label; or names of several.

    Raises:
        DataError: the file is no such text, a column is missing or there twice, a row is longer than the header, or a
            label is something else; the message names the line.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "few.csv"
        >>> _ = path.write_text("smiles,active\nCCO,1\nC,\n")
        >>> [tuple(row) for row in read_smiles(path, "smiles", "active")]
        [(2, 'CCO', (1.0,)), (3, 'C', (nan,))]
    """
    targets = [target_column] if isinstance(target_column, str) else list(target_column)
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        # spreadsheets write a byte order mark before the first column's name, which utf-8-sig skips
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            separator = max(",\t;", key=header.count)
            columns = [name.strip() for name in next(csv.reader([header], delimiter=separator), [])]
            for argument, name in (("smiles_column", smiles_column), *(("target_column", name) for name in targets)):
                if columns.count(name) != 1:
                    found = "no column" if name not in columns else f"{columns.count(name)} columns"
                    msg = f"{path} has {found} {name!r} (`{argument}`); it has {', '.join(map(repr, columns))}."
                    raise DataError(msg)
            places = columns.index(smiles_column), [columns.index(name) for name in targets]
            reader = csv.reader(file, delimiter=separator, strict=True)  # strict: a quote that is never closed
            for row in reader:
                if row:
                    yield _row(row, places, columns, path, reader.line_num + 1)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        msg = f"{path} can't be read as CSV in UTF-8, gzipped if its name ends in .gz: {error}."
        raise DataError(msg) from error


def _row(row: list[str], places: tuple[int, list[int]], columns: list[str], path: Path, line: int) -> SMILESRow:
    if len(row) != len(columns):
        msg = (
            f"Line {line} of {path} has {len(row)} cells, but the header has {len(columns)}. Put text that holds the "
            "separator in quotes."
        )
        raise DataError(msg)
    labels = []
    for place in places[1]:
        text = row[place].strip()
        if text.lower() not in (*_UNLABELLED, "0", "1", "0.0", "1.0"):
            msg = f"Expected 0, 1 or nothing in column {columns[place]!r} of {path}, but line {line} has {text!r}."
            raise DataError(msg)
        labels.append(math.nan if text.lower() in _UNLABELLED else float(text))
    return SMILESRow(line, row[places[0]].strip(), tuple(labels))


class Molecules(NamedTuple):
    """The labelled molecules of a file, and the scaffolds of those that a split is made over.

    Attributes:
        graphs: N labelled molecules.
        targets: int64 ``(N,)``, 0 or 1; with several labels float32 ``(N, K)``, nan where nothing was measured.
        lines: int64 ``(N,)``: line of each in the file; the header is line 1.
        scaffold_lines: int64 ``(M,)``: lines of the molecules that the scaffold split is made over.
        scaffolds: int64 ``(M,)``: number of the scaffold of each.
        num_unlabelled: rows without a label.
        invalid: line and SMILES of labelled rows that don't parse.
    """

    graphs: Graphs
    targets: Tensor
    lines: Tensor
    scaffold_lines: Tensor
    scaffolds: Tensor
    num_unlabelled: int
    invalid: tuple[tuple[int, str], ...]


def load_molecules(
    path: Path, smiles_column: str, target_column: str | list[str], *, scaffolds_of_all: bool, cache_dir: Path
) -> Molecules:
    """Read, parse and featurise a file, or load what an earlier call with the same content and columns stored.

    Unlabelled rows are dropped before graphs are built. The cache's key is a hash of the file's bytes, the columns and
    the versions of the libraries that determine the result. A damaged cache is built again.

    Args:
        path: the file; see :func:`~lightning_tpauc.data.molecules.read_smiles`.
        smiles_column: name of the column of SMILES.
        target_column: name of the column of labels, or names of several.
        scaffolds_of_all: also find the scaffolds of unlabelled molecules.
        cache_dir: where to store the result.

    Raises:
        DataError: the file is missing, can't be read as such, or holds no labelled molecule that parses.
        MissingExtraError: rdkit, ogb or torch_geometric is not installed.
    """
    versions = [import_extra("rdkit", "graph").__version__]
    with suppress(importlib.metadata.PackageNotFoundError):  # graphs from the cache need no ogb
        versions.append(importlib.metadata.version("ogb"))
    options = [_CACHE_FORMAT, versions, smiles_column, target_column, scaffolds_of_all]
    key = hashlib.sha256(path.read_bytes() + json.dumps(options).encode()).hexdigest()
    cached = cache_dir / f"{path.name.split('.')[0]}-{key[:20]}.pt"
    content: dict[str, Any] | None = None
    if cached.is_file():
        try:
            content = torch.load(cached, weights_only=True)
        except Exception:  # torch's reader fails with anything where a file is damaged
            _log.warning("The cache %s is damaged and is built again.", cached)
    if content is None:
        _log.info("Building graphs of the molecules in %s; later runs read %s.", path, cached)
        content = _build(path, smiles_column, target_column, scaffolds_of_all)
        with replacing(cached) as file:
            torch.save(content, file)
    return Molecules(Graphs(*content.pop("graphs")), **content)


def _build(path: Path, smiles_column: str, target_column: str | list[str], scaffolds_of_all: bool) -> dict[str, Any]:
    """Everything that the cache holds: tensors, numbers and tuples of strings."""
    rows = list(read_smiles(path, smiles_column, target_column))
    chem = import_extra("rdkit.Chem", "graph")
    murcko = import_extra("rdkit.Chem.Scaffolds.MurckoScaffold", "graph")
    smiles2graph = import_extra("ogb.utils.mol", "graph").smiles2graph
    graphs: list[dict[str, Any]] = []
    labelled: list[SMILESRow] = []
    scaffolds: dict[int, str] = {}
    invalid: list[tuple[int, str]] = []
    # rdkit writes every SMILES that does not parse to stderr. Here, they are counted instead.
    with import_extra("rdkit.rdBase", "graph").BlockLogs():
        wanted = rows if scaffolds_of_all else [row for row in rows if row.is_labelled]
        for row in tqdm(wanted, f"Building graphs of {path.name}", leave=False, disable=None):  # on terminals
            molecule = chem.MolFromSmiles(row.smiles)
            parses = molecule is not None and molecule.GetNumAtoms() > 0
            if parses:  # OGB's splits were made with chirality
                scaffolds[row.line] = murcko.MurckoScaffoldSmiles(mol=molecule, includeChirality=True)
            if row.is_labelled and parses:
                graphs.append(smiles2graph(row.smiles))
                labelled.append(row)
            elif row.is_labelled:
                invalid.append((row.line, row.smiles))
    if not labelled:
        msg = f"No row of {path} has both a label in {target_column!r} and a SMILES that parses ({len(rows)} rows)."
        raise DataError(msg)
    numbers = {scaffold: number for number, scaffold in enumerate(dict.fromkeys(scaffolds.values()))}
    targets = torch.tensor([row.labels for row in labelled])
    packed = Graphs(
        torch.from_numpy(np.concatenate([graph["node_feat"] for graph in graphs])),
        torch.from_numpy(np.concatenate([graph["edge_index"] for graph in graphs], axis=1)),
        torch.from_numpy(np.concatenate([graph["edge_feat"] for graph in graphs])),
        torch.tensor([graph["num_nodes"] for graph in graphs]),
        torch.tensor([graph["edge_index"].shape[1] for graph in graphs]),
    )
    return {
        "graphs": tuple(packed),
        "targets": targets if targets.shape[1] > 1 else targets[:, 0].long(),
        "lines": torch.tensor([row.line for row in labelled]),
        "scaffold_lines": torch.tensor(list(scaffolds)),
        "scaffolds": torch.tensor([numbers[scaffold] for scaffold in scaffolds.values()]),
        "num_unlabelled": sum(not row.is_labelled for row in rows),
        "invalid": tuple(invalid),
    }
