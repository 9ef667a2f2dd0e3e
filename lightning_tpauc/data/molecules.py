"""Molecules as graphs: from a file of SMILES, or from OGB."""

import csv
import gzip
import hashlib
import importlib.metadata
import json
import logging
import math
import zlib
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, Subset
from tqdm import tqdm

from lightning_tpauc.data.examples import Datasets
from lightning_tpauc.data.labels import binary_labels
from lightning_tpauc.data.source_files import GivenSplitDataModule, default_cache_dir, require_file
from lightning_tpauc.data.splits import label_parts
from lightning_tpauc.errors import ArgumentError, DataError, warn_on_rank_zero
from lightning_tpauc.extras import import_extra
from lightning_tpauc.files import replacing
from lightning_tpauc.functional.checks import check_choice, require_range

_log = logging.getLogger(__name__)
# Part of the cache's key. Raise it when the cached content changes.
_CACHE_FORMAT = 3
_LABELS = {"0": 0.0, "0.0": 0.0, "1": 1.0, "1.0": 1.0, **dict.fromkeys(("", "nan", "na", "none"), math.nan)}

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
# Where one of these is missing, ogb asks on the terminal, or downloads without being asked.
_OGB_FILES = ("RELEASE_v1.txt", "raw/edge.csv.gz", "raw/node-feat.csv.gz", "raw/edge-feat.csv.gz")


class SMILESDataModule(GivenSplitDataModule):
    r"""Molecules of a CSV file with a column of SMILES and columns of 0/1 labels, as graphs with OGB's features.

    Rows without a label are dropped. SMILES that rdkit can't parse are skipped and reported; more than ``max_invalid``
    are an error. Graphs are built once and cached under a key of the file's content. Inputs are PyG batches for
    :class:`~lightning_tpauc.models.GIN`. After ``setup``, :attr:`molecules` holds the line of each molecule.

    Args:
        file: CSV file with a header, possibly gzipped (``.gz``), relative to ``root``; cells are separated by commas,
            tabs or semicolons.
        target_column: name of the column of labels, or names of several, which are trained as several tasks at once.
            Labels are 0, 1 or 1.0, or nothing, ``nan``, ``NA`` or ``None`` where none was measured.
        smiles_column: name of the column of SMILES.
        root: folder of the file.
        split: ``"scaffold"`` keeps molecules of one Bemis-Murcko scaffold together, and the test set gets the rarer
            scaffolds, see :func:`~lightning_tpauc.data.molecules.scaffold_split`; as with OGB, molecules without a
            label count. Rare positives may all end up in one part. ``"random"`` shuffles each class by ``split_seed``.
        fractions: shares of training, validation and test part.
        max_invalid: share of labelled rows whose SMILES may fail to parse, in [0, 1].
        cache_dir: where to cache graphs; ``None``: ``$XDG_CACHE_HOME/lightning_tpauc`` or
            ``~/.cache/lightning_tpauc``.
        download: whether to download a missing ``tox21.csv.gz`` or ``muv.csv.gz`` of MoleculeNet to ``root``.
        train_with_val: see :class:`~lightning_tpauc.data.source_files.GivenSplitDataModule`.
        **kwargs: arguments of :class:`~lightning_tpauc.PosNegDataModule`.

    Raises:
        ArgumentError: an argument is out of range.
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
        max_invalid: float = 0.01,
        cache_dir: str | None = None,
        download: bool = False,
        train_with_val: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(train_with_val=train_with_val, **kwargs)
        self.path, self.download = Path(root) / file, download
        #: Names of the columns of labels.
        self.label_columns = [target_column] if isinstance(target_column, str) else list(target_column)
        self.smiles_column, self.split, self.fractions = smiles_column, split, fractions
        self.max_invalid = require_range("max_invalid", max_invalid, 0.0, 1.0)
        self.cache_dir = default_cache_dir() if cache_dir is None else Path(cache_dir)
        #: What was read, after ``setup``.
        self.molecules: GraphDataset | None = None
        check_choice(split, "split", ("scaffold", "random"))
        if min(fractions) < 0 or abs(sum(fractions) - 1.0) > 1e-6:
            raise ArgumentError(f"Expected `fractions` to be three numbers >= 0 with sum 1, but got {fractions!r}.")

    def prepare_data(self) -> None:
        """Download if asked to and needed, build and cache the graphs, in one process."""
        require_file(self.path, download=self.download)
        self._content()

    def load(self) -> Datasets:
        """Read the cache and split."""
        content = self._content()
        self._report(content["invalid"], len(content["num_nodes"]))
        lines, scaffolds, labels = (content[name] for name in ("lines", "scaffolds", "labels"))
        labelled = ~labels.isnan().all(dim=1)
        targets = labels[labelled] if len(self.label_columns) > 1 else labels[labelled, 0].long()
        names = self.label_columns if len(self.label_columns) > 1 else None
        known = lines[labelled], scaffolds[labelled].numpy()
        self.molecules = GraphDataset(_unpacked(content), targets, names, *known)
        if self.split == "random":
            of_both = binary_labels(targets).reshape(len(targets), -1)
            dealt = label_parts(of_both, np.array(self.fractions), self.split_seed, tuple(self.label_columns))
            parts = [part.tolist() for part in dealt]
        else:
            row = dict(zip(labelled.nonzero().flatten().tolist(), range(len(targets)), strict=True))
            split = scaffold_split(scaffolds.tolist(), self.fractions)
            parts = [[row[k] for k in sorted(part) if k in row] for part in split]
        return _datasets(self.molecules, parts, self.train_with_val)

    def _content(self) -> dict[str, Any]:
        """What :func:`_build` makes of the file, or made of the same content, columns and libraries before."""
        require_file(self.path)
        versions = [import_extra("rdkit", "graph").__version__]
        with suppress(importlib.metadata.PackageNotFoundError):  # graphs from the cache need no ogb
            versions.append(importlib.metadata.version("ogb"))
        # The scaffolds of what has no label count in the split by scaffolds alone; those of MUV take a minute.
        options = self.smiles_column, self.label_columns, self.split == "scaffold"
        key = hashlib.sha256(
            self.path.read_bytes() + json.dumps([_CACHE_FORMAT, versions, options]).encode()
        ).hexdigest()
        cached = self.cache_dir / f"{self.path.name.split('.')[0]}-{key[:20]}.pt"
        if not cached.is_file():
            _log.info("Building graphs of the molecules in %s; later runs read %s.", self.path, cached)
            built = _build(self.path, *options)
            with replacing(cached) as file:
                torch.save(built, file)
        return torch.load(cached, weights_only=True)

    def _report(self, invalid: list[tuple[int, str]], valid: int) -> None:
        if not invalid:
            return
        shown = ", ".join(f"line {line}: {smiles!r}" for line, smiles in invalid[:5])
        also = ", ..." if len(invalid) > 5 else ""
        total = len(invalid) + valid
        found = f"{len(invalid)} of {total} labelled SMILES of {self.path} don't parse ({shown}{also})"
        if len(invalid) > self.max_invalid * total:
            raise DataError(
                f"{found}, more than `max_invalid`={self.max_invalid} allows. Check `smiles_column`="
                f"{self.smiles_column!r}, repair the file, or raise `max_invalid`."
            )
        warn_on_rank_zero(f"{found} and are skipped.")


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
        check_choice(name, "name", tuple(OGB_TASKS))
        #: Numbers of the columns of labels.
        self.tasks = [task] if isinstance(task, int) else list(range(OGB_TASKS[name]) if task is None else task)
        if not self.tasks or not set(self.tasks) <= set(range(OGB_TASKS[name])):
            raise ArgumentError(f"Expected `task` to be in 0 .. {OGB_TASKS[name] - 1} for {name}, but got {task!r}.")
        self.dataset_name, self.download = name, download
        self.folder = Path(root) / name.replace("-", "_")

    def prepare_data(self) -> None:
        """Download if asked to, and let OGB process the files, in one process."""
        self._open()

    def load(self) -> Datasets:
        """The molecules with a label."""
        dataset, split = self._open()
        labels = dataset.y[:, self.tasks]
        labelled = ~labels.isnan().all(dim=1)
        parts = [split[part][labelled[split[part]]].tolist() for part in ("train", "valid", "test")]
        if len(self.tasks) == 1:
            return _datasets(GraphDataset(dataset, labels[:, 0]), parts, self.train_with_val)
        known = [str(task) for task in range(OGB_TASKS[self.dataset_name])]
        with suppress(OSError), gzip.open(self.folder / "mapping" / "mol.csv.gz", "rt", encoding="utf-8") as file:
            found = [name for name in next(csv.reader(file), []) if name not in ("smiles", "mol_id")]
            known = found if len(found) == len(known) else known
        names = [known[task] for task in self.tasks]
        return _datasets(GraphDataset(dataset, labels, names), parts, self.train_with_val)

    def _open(self) -> tuple[Any, dict[str, Tensor]]:
        """OGB's data set and its split."""
        graphproppred = import_extra("ogb.graphproppred", "graph")
        if not self.download or self.folder.exists():
            for name in _OGB_FILES:
                require_file(self.folder / name)
        data = import_extra("torch_geometric.data.data", "graph")
        storage = import_extra("torch_geometric.data.storage", "graph")
        # ogb 1.3.6 passes no `weights_only` to torch.load; see snap-stanford/ogb#497
        allowed = [data.DataEdgeAttr, data.DataTensorAttr, storage.GlobalStorage]
        where = {"root": str(self.folder.parent), "transform": _without_label}
        try:
            with torch.serialization.safe_globals(allowed):
                dataset = graphproppred.PygGraphPropPredDataset(self.dataset_name, **where)
                return dataset, dataset.get_idx_split()
        except Exception as error:  # of torch's reader, pandas or ogb, where a file is damaged
            raise DataError(
                f"{self.folder} can't be read ({type(error).__name__}: {error}). Remove {self.folder / 'processed'}, "
                "which is then made again from the raw files; if those are damaged, get the whole folder again."
            ) from error


def _without_label(graph: Any) -> Any:
    del graph.y
    return graph


class GraphDataset(Dataset[Any]):
    """Graphs of PyG whose labels are kept apart.

    Args:
        graphs: N graphs without an attribute ``y``.
        targets: their labels: ``(N,)``, or float ``(N, K)``, nan where not measured.
        label_names: names of several labels.
        lines: int64 ``(N,)``: line of each molecule in its file, where known; the header is line 1.
        scaffolds: int64 ``(N,)``: number of each molecule's scaffold, where known.
    """

    def __init__(
        self,
        graphs: Sequence[Any],
        targets: Tensor,
        label_names: Sequence[str] | None = None,
        lines: Tensor | None = None,
        scaffolds: NDArray[np.int64] | None = None,
    ) -> None:
        self.graphs, self.targets, self.label_names = graphs, targets, label_names
        self.lines, self.scaffolds = lines, scaffolds

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> Any:
        return self.graphs[row]


def _datasets(everything: GraphDataset, parts: Sequence[list[int]], train_with_val: bool) -> Datasets:
    """Training, validation and test set from positions in one data set; ``None`` where a part is empty."""
    train, val, test = parts
    if train_with_val:
        train, val = train + val, []
    return Datasets(*(Subset(everything, part) if part else None for part in (train, val, test)))


def scaffold_split(
    scaffolds: Sequence[Hashable], fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)
) -> tuple[list[int], list[int], list[int]]:
    """Positions of training, validation and test set, by MoleculeNet's and OGB's rule: large scaffold groups first.

    Groups are sorted by size, largest first; of two groups of one size, the one whose first molecule comes later is
    first. A group goes to the training set unless that would exceed its fraction, else to the validation set unless
    both together would exceed theirs. All other groups, with the rare scaffolds, go to the test set.

    Example:
        >>> scaffold_split(["ring", "chain", "ring", "cage", "ring"], (0.6, 0.2, 0.2))
        ([0, 2, 4], [3], [1])
    """
    groups: dict[Hashable, list[int]] = {}
    for position, scaffold in enumerate(scaffolds):
        groups.setdefault(scaffold, []).append(position)
    # With rounding, 0.8 * 10 + 0.1 * 10 may be slightly below 9.
    limits = [share * len(scaffolds) + 1e-9 for share in (fractions[0], fractions[0] + fractions[1])]
    parts: tuple[list[int], list[int], list[int]] = [], [], []
    for group in sorted(groups.values(), key=lambda members: (len(members), members[0]), reverse=True):
        fits = (k for k, limit in enumerate(limits) if sum(map(len, parts[: k + 1])) + len(group) <= limit)
        parts[next(fits, 2)].extend(group)
    return parts


def read_smiles(path: Path, smiles_column: str, columns: Sequence[str]) -> Iterator[tuple[int, str, list[float]]]:
    """The line (the header is line 1), the SMILES and the labels, nan where not measured, of each row of a CSV file."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        # spreadsheets write a byte order mark before the first column's name, which utf-8-sig skips
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            separator = max(",\t;", key=header.count)
            names = [name.strip() for name in next(csv.reader([header], delimiter=separator), [])]
            for column in (smiles_column, *columns):
                if names.count(column) != 1:
                    raise DataError(f"{path} has {names.count(column) or 'no'} columns {column!r}; it has {names}.")
            # strict: a quote that is never closed
            reader = csv.DictReader(file, names, delimiter=separator, strict=True)
            for row in reader:
                line = reader.line_num + 1
                if None in row or None in row.values():
                    raise DataError(
                        f"Line {line} of {path} has not {len(names)} cells, as the header has. Put text in quotes."
                    )
                texts = [row[column].strip() for column in columns]
                wrong = next((k for k, text in enumerate(texts) if text.lower() not in _LABELS), None)
                if wrong is not None:
                    raise DataError(
                        f"Expected 0, 1 or nothing in column {columns[wrong]!r} of {path}, but line {line} has "
                        f"{texts[wrong]!r}."
                    )
                yield line, row[smiles_column].strip(), [_LABELS[text.lower()] for text in texts]
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise DataError(f"{path} can't be read as CSV in UTF-8, gzipped if its name ends in .gz: {error}.") from error


def _build(path: Path, smiles_column: str, columns: Sequence[str], unlabelled: bool) -> dict[str, Any]:
    """Lines, labels and scaffolds of the molecules that parse, and the packed graphs of those with a label."""
    chem = import_extra("rdkit.Chem", "graph")
    murcko = import_extra("rdkit.Chem.Scaffolds.MurckoScaffold", "graph")
    smiles2graph = import_extra("ogb.utils.mol", "graph").smiles2graph
    rows = list(read_smiles(path, smiles_column, columns))
    found: list[tuple[int, list[float], str]] = []
    graphs: list[dict[str, Any]] = []
    invalid: list[tuple[int, str]] = []
    # rdkit writes every SMILES that does not parse to stderr. Here, they are counted instead.
    with import_extra("rdkit.rdBase", "graph").BlockLogs():
        for line, smiles, labels in tqdm(rows, f"Building graphs of {path.name}", leave=False, disable=None):
            measured = not all(map(math.isnan, labels))
            molecule = chem.MolFromSmiles(smiles) if measured or unlabelled else None
            if molecule is not None and molecule.GetNumAtoms() > 0:  # OGB's splits were made with chirality
                found.append((line, labels, murcko.MurckoScaffoldSmiles(mol=molecule, includeChirality=True)))
                graphs += [smiles2graph(smiles)] if measured else []
            elif measured:
                invalid.append((line, smiles))
    if not graphs:
        raise DataError(f"No row of {path} has both a label in {columns} and a SMILES that parses ({len(rows)} rows).")
    numbers = {scaffold: number for number, scaffold in enumerate(dict.fromkeys(scaffold for *_, scaffold in found))}
    return {
        "x": torch.from_numpy(np.concatenate([graph["node_feat"] for graph in graphs])),
        "edge_index": torch.from_numpy(np.concatenate([graph["edge_index"] for graph in graphs], axis=1)),
        "edge_attr": torch.from_numpy(np.concatenate([graph["edge_feat"] for graph in graphs])),
        "num_nodes": [graph["num_nodes"] for graph in graphs],
        "num_edges": [graph["edge_index"].shape[1] for graph in graphs],
        "lines": torch.tensor([line for line, *_ in found]),
        "labels": torch.tensor([labels for _, labels, _ in found]),
        "scaffolds": torch.tensor([numbers[scaffold] for *_, scaffold in found]),
        "invalid": invalid,
    }


def _unpacked(content: dict[str, Any]) -> list[Any]:
    """Graphs of PyG, which share the memory of the packed ones."""
    data = import_extra("torch_geometric.data", "graph").Data
    nodes, edges = content["x"].split(content["num_nodes"]), content["num_edges"]
    parts = zip(nodes, content["edge_index"].split(edges, dim=1), content["edge_attr"].split(edges), strict=True)
    return [data(x=x, edge_index=edge_index, edge_attr=edge_attr) for x, edge_index, edge_attr in parts]
