"""Molecules as graphs: from a file of SMILES, or from OGB."""

from __future__ import annotations

import contextlib
import csv
import gzip
import hashlib
import importlib.metadata
import itertools
import json
import logging
import math
import warnings
import zlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO, cast

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from lightning_tpauc.data.examples import Datasets, RowsDataset
from lightning_tpauc.data.labels import binary_labels
from lightning_tpauc.data.source_files import (
    DAMAGES,
    SOURCES,
    GivenSplitDataModule,
    add_checksum,
    default_cache_dir,
    download_missing,
    has_checksum,
    require_file,
)
from lightning_tpauc.data.splits import label_parts
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning
from lightning_tpauc.extras import import_extra
from lightning_tpauc.files import replacing
from lightning_tpauc.functional.checks import check_choice, is_whole

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
        if self.split == "random":
            parts = list(random_split(molecules.targets, self.fractions, self.split_seed, self.label_columns))
        else:
            row_of_line = {line: row for row, line in enumerate(molecules.lines.tolist())}
            lines = molecules.scaffold_lines.tolist()
            dealt = scaffold_split(molecules.scaffolds.tolist(), self.fractions)
            rows = ([row_of_line[lines[k]] for k in part if lines[k] in row_of_line] for part in dealt)
            parts = [torch.tensor(sorted(part), dtype=torch.int64) for part in rows]
        check = self._check_parts if self.label_columns is None else self._check_parts_of_tasks
        check([molecules.targets[part] for part in parts])
        everything = GraphDataset(molecules.graphs, molecules.targets, self.label_columns)
        of_line = dict(zip(molecules.scaffold_lines.tolist(), molecules.scaffolds.tolist(), strict=True))
        everything.scaffolds = np.array([of_line[line] for line in molecules.lines.tolist()])
        return _datasets(everything, parts, self.train_with_val)

    @property
    def label_columns(self) -> list[str] | None:
        """Names of the columns of several tasks; ``None`` with one."""
        return None if isinstance(self.target_column, str) else self.target_column

    def _read(self) -> Molecules:
        require_file(self.path, downloads=self.path.name in SOURCES)
        if self.path.is_dir():
            msg = f"Expected `file` to be the name of a CSV file in `root`, but {self.path} is a folder."
            raise DataError(msg)
        everything = self.split == "scaffold" and self.split_over == "all"
        return load_molecules(
            self.path, self.smiles_column, self.target_column, scaffolds_of_all=everything, cache_dir=self.cache_dir
        )

    def _check_parts(self, targets: Sequence[Tensor]) -> None:
        """Check that no part lacks positives: a scaffold split deals whole groups."""
        counts = [(int(labels.sum()), len(labels)) for labels in targets]
        names = ("training", "validation", "test")
        found = ", ".join(f"{p} of {n} in the {part} part" for (p, n), part in zip(counts, names, strict=True))
        msg = f"The {self.split} split of {self.path} leaves these positives: {found}"
        remedy = "Set other `fractions`" if self.split == "random" else "Set `split='random'` or other `fractions`"
        if not any(positives for positives, _ in counts):
            remedy = f"Check `target_column`={self.target_column!r}: no label in it is 1"
        trained = counts[0][0] + (counts[1][0] if self.train_with_val else 0)
        if trained == 0 and self.fractions[0] > 0:  # Without training rows, the file is meant for testing.
            msg = f"{msg}. There is none to train on. {remedy}."
            raise DataError(msg)
        evaluated = counts[2:] if self.train_with_val else counts[1:]
        if any(n and p in (0, n) for p, n in evaluated):
            rank_zero_warn(f"{msg}; TPAUC is nan where a class is missing. {remedy}.", category=TPAUCWarning)

    def _check_parts_of_tasks(self, targets: Sequence[Tensor]) -> None:
        """Say which tasks lack a class in a part that is evaluated; those of the training part are checked for all."""
        evaluated = {"validation": targets[1][:0] if self.train_with_val else targets[1], "test": targets[2]}
        lacking = []
        for part, labels in evaluated.items():
            both = (labels == 1).any(0) & (labels == 0).any(0)
            names = [name for name, fits in zip(self.label_columns or (), both.tolist(), strict=True) if not fits]
            if len(labels) and names:
                lacking.append(f"{', '.join(map(repr, names))} in the {part} part")
        if lacking:
            rank_zero_warn(
                f"The {self.split} split of {self.path} leaves one class only of {' and of '.join(lacking)}; TPAUC is "
                "nan there. Set other `fractions`, or leave out these columns.",
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
        dataset = self._open()
        with warnings.catch_warnings():
            # PyG warns about reading the joint storage instead of single graphs. Here, that is intended.
            warnings.simplefilter("ignore", UserWarning)
            storage = dataset.data
        slices = dataset.slices
        graphs = PackedGraphs(
            storage.x, storage.edge_index, storage.edge_attr, slices["x"].diff(), slices["edge_index"].diff()
        )
        labels = storage.y[:, self.tasks]
        with reading_ogb(self.folder):
            split = dataset.get_idx_split()
        labelled = ~labels.isnan().all(dim=1)
        parts = [split[part][labelled[split[part]]] for part in ("train", "valid", "test")]
        kept = torch.cat(parts)
        # Drop unlabelled molecules, which may be most, before the parts are copied.
        if len(self.tasks) == 1:
            everything = GraphDataset(graphs.take(kept), labels[kept, 0])
        else:
            names = ogb_task_names(self.folder, OGB_TASKS[self.dataset_name])
            everything = GraphDataset(graphs.take(kept), labels[kept], [names[task] for task in self.tasks])
        return _datasets(everything, _consecutive([len(part) for part in parts]), self.train_with_val)

    def _open(self) -> Any:
        """OGB's data set. Raises an error where ogb would ask on the terminal."""
        graphproppred = import_extra("ogb.graphproppred", "graph")
        if not self.download or self.folder.exists():
            require_file(self.folder, downloads=True)
            check_ogb_folder(self.folder)
        with reading_ogb(self.folder):
            return graphproppred.PygGraphPropPredDataset(self.dataset_name, root=str(self.root))


def _as_list(task: int | Sequence[int]) -> list[int]:
    return list(task) if isinstance(task, (list, tuple)) else [cast(int, task)]


def _columns(target_column: Any) -> Any:
    """The name of a column, or names of several; a list of one is that one."""
    if isinstance(target_column, str):
        return target_column
    names = list(target_column)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        msg = f"Expected `target_column` to be the name of a column, or different names, but got {target_column!r}."
        raise ArgumentError(msg)
    return names if len(names) > 1 else names[0]


def _consecutive(sizes: Sequence[int]) -> list[Tensor]:
    """Positions of parts that lie one after the other."""
    ends = list(itertools.accumulate(sizes))
    return [torch.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _datasets(everything: GraphDataset, parts: Sequence[Tensor], train_with_val: bool) -> Datasets:
    """Training, validation and test set from positions in one data set; ``None`` where a part is empty."""
    train, val, test = parts
    if train_with_val:
        train, val = torch.cat([train, val]), val[:0]
    return Datasets(*(everything.subset(part) if len(part) else None for part in (train, val, test)))


Indices = NDArray[np.int64]


class PackedGraphs:
    """The nodes of all graphs one after the other, and the same for their edges.

    A batch is gathered from four arrays. ``Batch.from_data_list``, in contrast, touches every graph in Python. Integer
    features that fit into a byte, as those of OGB's molecules do, are kept as bytes.

    Args:
        x: node features ``(nodes, F)``.
        edge_index: int64 ``(2, edges)``; nodes are numbered from 0 within their graph.
        edge_attr: edge features ``(edges, G)``.
        num_nodes: int64 ``(N,)``, nodes of each graph.
        num_edges: int64 ``(N,)``, edges of each graph.

    Raises:
        DataError: if the arrays' lengths disagree with the counts.

    Example:
        >>> import torch
        >>> graphs = PackedGraphs(torch.arange(5)[:, None], torch.tensor([[0, 1, 0], [1, 0, 1]]),
        ...                       torch.zeros(3, 1), torch.tensor([2, 1, 2]), torch.tensor([2, 0, 1]))
        >>> graphs.take(torch.tensor([2, 1])).x.flatten().tolist()
        [3, 4, 2]
    """

    def __init__(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, num_nodes: Tensor, num_edges: Tensor) -> None:
        nodes, edges = int(num_nodes.sum()), int(num_edges.sum())
        found = len(num_edges), len(x), edge_index.shape[1], len(edge_attr)
        if found != (len(num_nodes), nodes, edges, edges):
            msg = (
                f"Expected {nodes} nodes and {edges} edges, as the counts of {len(num_nodes)} graphs say, but got "
                f"{found[0]} counts of edges, {found[1]} nodes, {found[2]} edges and {found[3]} edge features."
            )
            raise DataError(msg)
        self.x, self.edge_attr = _narrow(x), _narrow(edge_attr)
        self.edge_index = edge_index
        self.num_nodes, self.num_edges = num_nodes, num_edges
        self._first_node = num_nodes.cumsum(0) - num_nodes
        self._first_edge = num_edges.cumsum(0) - num_edges

    def __len__(self) -> int:
        return len(self.num_nodes)

    def take(self, index: Tensor) -> PackedGraphs:
        """The graphs ``index`` (int64, ``(M,)``) in that order, repetitions included."""
        num_nodes, num_edges = self.num_nodes[index], self.num_edges[index]
        nodes, edges = _runs(self._first_node[index], num_nodes), _runs(self._first_edge[index], num_edges)
        return PackedGraphs(
            self.x.index_select(0, nodes),
            self.edge_index.index_select(1, edges),
            self.edge_attr.index_select(0, edges),
            num_nodes,
            num_edges,
        )

    def joined(self) -> dict[str, Tensor]:
        """The fields of a PyG batch: all graphs as one unconnected graph.

        Returns:
            ``x``, ``edge_attr`` (integers as int64), ``edge_index`` (nodes numbered through), ``batch`` int64
            ``(nodes,)``, the graph of each node, and ``ptr`` int64 ``(N + 1,)``, the first node of each graph.
        """
        shift = self._first_node.repeat_interleave(self.num_edges)
        return {
            "x": _widen(self.x),
            "edge_index": self.edge_index + shift,
            "edge_attr": _widen(self.edge_attr),
            "batch": torch.arange(len(self)).repeat_interleave(self.num_nodes),
            "ptr": torch.cat([self._first_node, self.num_nodes.sum(0, keepdim=True)]),
        }


class GraphDataset(RowsDataset):
    """Labelled graphs. Items are PyG graphs; a whole batch is fetched by a few indexing calls.

    Args:
        graphs: N graphs.
        targets: N labels, 0 or 1; of several tasks ``(N, K)``, nan where nothing was measured.
        label_names: names of several tasks.

    Raises:
        DataError: if lengths differ.
        MissingExtraError: torch_geometric is not installed.

    Example:
        >>> import torch
        >>> graphs = PackedGraphs(torch.arange(3)[:, None], torch.tensor([[0, 1], [1, 0]]), torch.zeros(2, 1),
        ...                       torch.tensor([2, 1]), torch.tensor([2, 0]))
        >>> data = GraphDataset(graphs, [1, 0])
        >>> data[0]
        Data(x=[2, 1], edge_index=[2, 2], edge_attr=[2, 1], y=[1])
        >>> data.rows(np.array([1, 0])).num_graphs
        2
    """

    #: Number of each molecule's scaffold, where a data module knows it.
    scaffolds: NDArray[np.int64] | None = None

    def __init__(
        self,
        graphs: PackedGraphs,
        targets: Tensor | NDArray[Any] | Sequence[int],
        label_names: Sequence[str] | None = None,
    ) -> None:
        if len(graphs) != len(targets):
            msg = f"Expected one label per graph, but got {len(targets)} labels for {len(graphs)} graphs."
            raise DataError(msg)
        self.graphs = graphs
        labels = torch.as_tensor(targets)
        #: int64 tensor ``(N,)``, or float tensor ``(N, K)``.
        self.targets = labels.float() if labels.ndim == 2 else labels.long()
        self.label_names = label_names
        data = import_extra("torch_geometric.data", "graph")
        self._item_type, self._batch_type = data.Data, data.Batch

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> Any:
        index = torch.arange(len(self))[row].reshape(1)  # raises IndexError past the end, as iteration needs
        graph = self.graphs.take(index)
        return self._item_type(
            x=_widen(graph.x), edge_index=graph.edge_index, edge_attr=_widen(graph.edge_attr), y=self.targets[index]
        )

    def rows(self, rows: Indices) -> Any:
        """The PyG ``Batch`` of the graphs ``rows``, with their targets as ``y``."""
        index = torch.from_numpy(np.asarray(rows, dtype=np.int64))
        return self._batch_type(y=self.targets[index], **self.graphs.take(index).joined())

    def subset(self, index: Tensor) -> GraphDataset:
        """A copy of the graphs ``index`` (int64, ``(M,)``) alone."""
        part = GraphDataset(self.graphs.take(index), self.targets[index], self.label_names)
        part.scaffolds = None if self.scaffolds is None else self.scaffolds[index.numpy()]
        return part


def _runs(starts: Tensor, lengths: Tensor) -> Tensor:
    """``starts[0], starts[0] + 1, ..``, ``lengths[0]`` of them, then those of the next run."""
    position = torch.arange(int(lengths.sum()))
    return position + (starts - (lengths.cumsum(0) - lengths)).repeat_interleave(lengths)


def _narrow(features: Tensor) -> Tensor:
    if features.dtype == torch.int64 and (features.numel() == 0 or (features.min() >= 0 and features.max() < 256)):
        return features.to(torch.uint8)
    return features


def _widen(features: Tensor) -> Tensor:
    return features.long() if features.dtype == torch.uint8 else features


# What ogb looks for before it reads a folder.
_FILES = ("RELEASE_v1.txt", *(f"raw/{name}.csv.gz" for name in ("edge", "node-feat", "edge-feat")))


def check_ogb_folder(folder: Path) -> None:
    """Refuse a folder for which ogb would ask on the terminal or download files without being asked.

    Raises:
        DataError: if one of its files is missing.

    Example:
        >>> import tempfile
        >>> check_ogb_folder(Path(tempfile.mkdtemp()))
        Traceback (most recent call last):
        ...
        lightning_tpauc.errors.DataError: ... is not complete: RELEASE_v1.txt is missing. ...
    """
    missing = next((name for name in _FILES if not (folder / name).is_file()), None)
    if missing is not None:
        msg = (
            f"{folder} is not complete: {missing} is missing. Copy the whole folder, or remove it and set "
            "`--data.download true`."
        )
        raise DataError(msg)


def ogb_task_names(folder: Path, count: int) -> list[str]:
    """The names of a data set's tasks from the table of its molecules, or numbers if it does not have it.

    Example:
        >>> ogb_task_names(Path("nowhere"), 3)
        ['0', '1', '2']
    """
    header: list[str] = []
    with contextlib.suppress(*DAMAGES), gzip.open(folder / "mapping" / "mol.csv.gz", "rt", encoding="utf-8") as file:
        header = next(csv.reader(file), [])
    names = [name for name in header if name not in ("smiles", "mol_id")]
    return names if len(set(names)) == count == len(names) else list(map(str, range(count)))


@contextlib.contextmanager
def reading_ogb(folder: Path) -> Iterator[None]:
    """Allow ``torch.load`` to read ogb's files, and turn errors into one that names the folder.

    ogb 1.3.6 passes no ``weights_only``; see snap-stanford/ogb#497. The three classes that its files hold are allowed
    within the context. A process that is killed while ogb processes a folder leaves half a file.

    Raises:
        DataError: if ogb can't read or download the folder.

    Example:
        >>> with reading_ogb(Path("data/ogbg_molmuv")):
        ...     len(torch.serialization.get_safe_globals()) >= 3
        True
    """
    try:
        with _safe_globals():
            yield
    except DAMAGES as error:
        what = f"({type(error).__name__}: {error})"
        msg = f"{folder} can't be downloaded {what}. Remove it and try again, or copy the whole folder from elsewhere."
        if (folder / _FILES[0]).is_file():
            msg = (
                f"{folder} can't be read {what}. Remove {folder / 'processed'}, which is then made again from the raw "
                "files; if those are damaged, get the whole folder again."
            )
        raise DataError(msg) from error


def _safe_globals() -> Any:
    data = import_extra("torch_geometric.data.data", "graph")
    storage = import_extra("torch_geometric.data.storage", "graph")
    return torch.serialization.safe_globals([data.DataEdgeAttr, data.DataTensorAttr, storage.GlobalStorage])


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


def random_split(
    targets: Tensor, fractions: tuple[float, float, float], seed: int, names: Sequence[str] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Shuffle each class and cut it by the fractions, so that all parts keep the share of positives.

    Args:
        targets: int64 ``(n,)``, 0 or 1; of several tasks ``(n, K)``, nan where nothing was measured.
        fractions: shares of training, validation and test set; they add up to 1.
        seed: seed of the split.
        names: names of several tasks.

    Returns:
        Sorted int64 positions of the three parts.

    Raises:
        ArgumentError: a fraction is negative, or they don't add up to 1.
        DataError: several tasks can't have both classes in all parts.

    Example:
        >>> [len(part) for part in random_split(torch.arange(20) // 10, (0.8, 0.1, 0.1), seed=0)]
        [16, 2, 2]
    """
    check_fractions(fractions)
    if names is not None:
        cut = label_parts(binary_labels(targets), np.array(fractions), seed, tuple(names))
        train, val, test = map(torch.from_numpy, cut)
        return train, val, test
    generator = torch.Generator().manual_seed(seed)
    parts: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
    for label in (0, 1):
        members = (targets == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        first, second = (round(share * len(members)) for share in (fractions[0], fractions[0] + fractions[1]))
        for part, piece in zip(parts, members.tensor_split((first, second)), strict=True):
            part.append(piece)
    train, val, test = (torch.cat(part).sort().values for part in parts)
    return train, val, test


def check_fractions(fractions: Sequence[float]) -> None:
    """Raise :class:`ArgumentError` unless ``fractions`` are three numbers >= 0 that add up to 1."""
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1.0) > 1e-6:
        msg = f"Expected `fractions` to be three numbers >= 0 that add up to 1, but got {tuple(fractions)!r}."
        raise ArgumentError(msg)


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
        path: the file; see :func:`~lightning_tpauc.data.molecules.read_smiles`.
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
