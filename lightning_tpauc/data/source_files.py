"""What the data modules of files share: where the files come from, and a given split."""

from __future__ import annotations

import os
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

from torch.hub import download_url_to_file

from lightning_tpauc.data.datamodule import PosNegDataModule
from lightning_tpauc.data.examples import Datasets
from lightning_tpauc.errors import ArgumentError, DataError

_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
_DEEPCHEM = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets"


class Source(NamedTuple):
    """Where a file comes from: its address, and 64 hex digits of its sha256, or ``None`` where none is published."""

    url: str
    sha256: str | None


#: The files that :func:`download_missing` can fetch, by name.
SOURCES = {
    "ijcnn1.bz2": Source(f"{_LIBSVM}/ijcnn1.bz2", "b38a4198ce142d43e96fb86d17b87211feec1f909ac344fa057455c69de29de3"),
    "ijcnn1.t.bz2": Source(
        f"{_LIBSVM}/ijcnn1.t.bz2", "acd1db430684fdd3f0c768ecc49aa8e749d0004fc117611220c2aa576a7b6a24"
    ),
    "HIGGS.xz": Source(f"{_LIBSVM}/HIGGS.xz", None),
    "SUSY.xz": Source(f"{_LIBSVM}/SUSY.xz", None),
    "tox21.csv.gz": Source(
        f"{_DEEPCHEM}/tox21.csv.gz", "48b34e4e59a2bae6f95734cd206c1869ab355f50a5e50bb7371a21f861d5e297"
    ),
    "muv.csv.gz": Source(f"{_DEEPCHEM}/muv.csv.gz", "93c8b4a37c5996c76e57d5f3f065fb8b7cf1c19067011eff2293fd2a94ce274a"),
}


def download_missing(path: Path) -> None:
    """Download a file of :data:`SOURCES` unless it exists; a bar shows the progress.

    The file appears under its name when it is complete and its hash is right. An existing file is not checked.

    Args:
        path: where to save the file. Its name is looked up in :data:`SOURCES`. Its folder is made if necessary.

    Raises:
        ArgumentError: no source is known for this name.
        DataError: the file can't be downloaded or written, or its hash is wrong.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "there.txt"
        >>> _ = path.write_text("mine")
        >>> download_missing(path)
        >>> path.read_text()
        'mine'
    """
    if path.exists():
        return
    if path.name not in SOURCES:
        msg = (
            f"Expected a file that can be downloaded ({', '.join(SOURCES)}), but got {path.name!r}, and {path} does "
            "not exist. Save the file there, or correct its name or `--data.root`."
        )
        raise ArgumentError(msg)
    url, sha256 = SOURCES[path.name]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        download_url_to_file(url, str(path), hash_prefix=sha256, progress=True)
    except (OSError, HTTPException, RuntimeError) as error:  # RuntimeError: the hash is another one
        msg = f"{path} could not be downloaded: {error}. Try again, or fetch {url} yourself and save it there."
        raise DataError(msg) from error


def require_file(path: Path) -> None:
    """Raise :class:`DataError` unless the file or folder exists; the message says where it was looked for."""
    if not path.exists():
        remedy = ", or `--data.download true` to fetch it" if path.name in SOURCES else ""
        msg = f"{path} does not exist. Set `root` (`--data.root DIR`) to the folder that holds it{remedy}."
        raise DataError(msg)


def default_cache_dir() -> Path:
    """Folder of parsed data: ``lightning_tpauc`` in ``$XDG_CACHE_HOME``, or in ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightning_tpauc"


class GivenSplitDataModule(PosNegDataModule):
    """Base of data modules of a data set with a fixed split; subclasses define :meth:`load`.

    Args:
        train_with_val: whether to join the validation part to the training part. ``val_fraction`` or ``num_folds`` can
            then split off validation rows (cross-validation, as in the paper).
        **kwargs: arguments of :class:`~lightning_tpauc.PosNegDataModule`.

    Raises:
        ArgumentError: validation has two sources: the given part, and ``val_fraction`` or ``num_folds``.
    """

    def __init__(self, *, train_with_val: bool = False, **kwargs: Any) -> None:
        # Named, so that the command line does not offer data sets as arguments.
        super().__init__(
            train_dataset=None, val_dataset=None, test_dataset=None, predict_dataset=None, negatives=None, **kwargs
        )
        self.train_with_val = train_with_val
        self._loaded: Datasets | None = None
        splits = [name for name in ("val_fraction", "num_folds") if getattr(self, name) is not None]
        if splits and not train_with_val:
            msg = (
                f"Got `{splits[0]}`, but the data set has a validation part already. Set `train_with_val=True` to join "
                f"it to the training part and split both, or leave `{splits[0]}` out."
            )
            raise ArgumentError(msg)

    def load(self) -> Datasets:
        """Read the files; if ``train_with_val``, ``train`` holds both parts and ``val`` is ``None``."""
        raise NotImplementedError

    def build_datasets(self, stage: str | None) -> Datasets:  # noqa: ARG002  # the parts share their files
        """The parts; predictions are made on the test part."""
        if self._loaded is None:
            loaded = self.load()
            self._loaded = loaded._replace(predict=loaded.test)
        return self._loaded
