"""What the data modules of files share: where the files come from, and a given split."""

from __future__ import annotations

import os
import pickle
import tokenize
import zipfile
import zlib
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any, NamedTuple

from torch.hub import download_url_to_file

from lightning_tpauc.data.datamodule import PosNegDataModule
from lightning_tpauc.data.examples import Datasets
from lightning_tpauc.errors import ArgumentError, DataError

#: What NumPy, torch, zipfile and zlib raise when a file does not hold what they expect. A damaged header may also claim
#: more bytes than the memory has.
DAMAGES = (
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    ValueError,
    pickle.UnpicklingError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
_CHECKSUM_BYTES = 4
_CHUNK_BYTES = 1 << 18

_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
_DEEPCHEM = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets"


class Source(NamedTuple):
    """Where a file comes from.

    Attributes:
        url: its address.
        sha256: 64 hex digits; ``None`` if unknown, and what arrives is then taken as it is.
    """

    url: str
    sha256: str | None


#: The files that :func:`download_missing` can fetch, by name. HIGGS and SUSY have no published hash. Their reader
#: refuses files that are cut off or are not xz.
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

    The file appears under its name when it is complete and its hash is right. A broken download leaves nothing behind.
    An existing file is not checked.

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
    by_hand = f"Or fetch {url} yourself and save it as {path.absolute()}."
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        download_url_to_file(url, str(path), hash_prefix=sha256, progress=True)
    except (OSError, HTTPException) as error:  # urllib's errors are OSErrors, too
        msg = f"{path} could not be downloaded: {error}. Try again when the network is there. {by_hand}"
        raise DataError(msg) from error
    except RuntimeError as error:
        msg = f"{url} sent another file than expected, which was thrown away: {error}. Try again later. {by_hand}"
        raise DataError(msg) from error


def require_file(path: Path, *, downloads: bool) -> None:
    """Raise :class:`DataError` unless the file or folder exists; the message says where it was looked for."""
    if path.exists():
        return
    remedy = "Set `--data.root` to the folder that holds it"
    remedy += ", or `--data.download true` to fetch it." if downloads else "."
    msg = f"{path} does not exist. {remedy}"
    raise DataError(msg)


def default_cache_dir() -> Path:
    """Folder of parsed data: ``lightning_tpauc`` in ``$XDG_CACHE_HOME``, or in ``~/.cache``.

    Example:
        >>> default_cache_dir().name
        'lightning_tpauc'
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightning_tpauc"


def add_checksum(file: IO[bytes]) -> None:
    """Append the CRC-32 of everything that was written to a file; :func:`has_checksum` compares it later.

    Readers of NumPy's and torch's formats ignore the four bytes at the end.

    Args:
        file: a file on disk, open for writing, at its end.
    """
    file.flush()
    file.write(_checksum(Path(file.name), file.tell()))


def has_checksum(path: Path) -> bool:
    """Whether a file ends with the checksum of its content.

    Args:
        path: a file that was finished with :func:`add_checksum`.

    Returns:
        ``False`` if the file is missing, unreadable or damaged, or has no checksum.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "some.bin"
        >>> with path.open("wb") as file:
        ...     _ = file.write(b"content")
        ...     add_checksum(file)
        >>> has_checksum(path)
        True
        >>> _ = path.write_bytes(path.read_bytes().replace(b"t", b"d"))
        >>> has_checksum(path)
        False
    """
    try:
        size = path.stat().st_size - _CHECKSUM_BYTES
        with path.open("rb") as file:
            file.seek(max(0, size))
            return size > 0 and file.read() == _checksum(path, size)
    except OSError:
        return False


def _checksum(path: Path, size: int) -> bytes:
    """CRC-32 of the first ``size`` bytes."""
    crc = 0
    with path.open("rb") as file:
        for start in range(0, size, _CHUNK_BYTES):
            crc = zlib.crc32(file.read(min(_CHUNK_BYTES, size - start)), crc)
    return crc.to_bytes(_CHECKSUM_BYTES, "big")


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
