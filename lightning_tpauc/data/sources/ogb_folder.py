"""The folder of a data set of the Open Graph Benchmark, which ogb reads: checks, and errors that say what to do."""

from __future__ import annotations

import contextlib
import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from lightning_tpauc.data.sources.files import DAMAGES
from lightning_tpauc.errors import DataError
from lightning_tpauc.extras import import_extra

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
