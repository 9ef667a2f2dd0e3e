"""Molecules as graphs: from a file of SMILES, or from OGB."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_tpauc.data.core.datasets import Datasets
from lightning_tpauc.data.sources.files import SOURCES, default_cache_dir, download_missing, require_file
from lightning_tpauc.data.sources.fixed_split import GivenSplitDataModule
from lightning_tpauc.data.sources.graphs import GraphDataset, PackedGraphs
from lightning_tpauc.data.sources.ogb_folder import check_ogb_folder, ogb_task_names, reading_ogb
from lightning_tpauc.data.sources.scaffolds import check_fractions, random_split, scaffold_split
from lightning_tpauc.data.sources.smiles import Molecules, load_molecules
from lightning_tpauc.errors import ArgumentError, DataError, TPAUCWarning
from lightning_tpauc.extras import import_extra
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
            scaffolds, see :func:`~lightning_tpauc.data.sources.scaffolds.scaffold_split`; ``"random"`` shuffles each
            class by ``split_seed``.
        fractions: shares of training, validation and test part.
        split_over: the molecules that the scaffold split is made over: ``"all"`` molecules of the file, as OGB does, or
            only the ``"labelled"`` ones. Finding all scaffolds takes about a minute for the 93,127 molecules of MUV,
            once.
        max_invalid: share of labelled rows whose SMILES may fail to parse, in [0, 1].
        cache_dir: where to cache graphs; ``None``: ``$XDG_CACHE_HOME/lightning_tpauc`` or
            ``~/.cache/lightning_tpauc``.
        download: whether to download a missing ``tox21.csv.gz`` or ``muv.csv.gz`` of MoleculeNet to ``root``.
        train_with_val: see :class:`~lightning_tpauc.data.sources.fixed_split.GivenSplitDataModule`.
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
        train_with_val: see :class:`~lightning_tpauc.data.sources.fixed_split.GivenSplitDataModule`.
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
