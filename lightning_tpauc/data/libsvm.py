"""LIBSVM data sets: ijcnn1, HIGGS, SUSY and others of that format."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray
from torch.utils.data import Subset
from tqdm import tqdm

from lightning_tpauc.data.datamodule import PosNegDataModule
from lightning_tpauc.data.examples import ArrayDataset, Datasets
from lightning_tpauc.data.seeding import Purpose, permute
from lightning_tpauc.data.source_files import default_cache_dir, download_missing, require_file
from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.files import replacing

_ROWS_AT_ONCE = 1 << 16
_PAIRS = ((-1.0, 1.0), (0.0, 1.0), (1.0, 2.0))
# Text files of this size or more are cached. They have about 700,000 rows of 100 bytes.
_CACHED_FROM_BYTES = 64 << 20
_BLOCK_BYTES = 16 << 20
_OPENERS: dict[str, Any] = {".bz2": bz2.open, ".xz": lzma.open, ".gz": gzip.open}


class LIBSVMDataModule(PosNegDataModule):
    r"""Features and labels from svmlight text, dense and standardised.

    Args:
        root: folder of the files (``--data.root``).
        train_file: training file in ``root``: plain text, ``.bz2``, ``.gz`` or ``.xz``.
        test_file: test file in ``root``.
        test_fraction: for data sets of one file, the share of its last rows that is the test set, in (0, 1); 0.2 for
            HIGGS and SUSY.
        remove_positives: share of the positives that is removed at random from the training and the test rows, in
            [0, 1); 0.995 in the paper's HIGGS and SUSY.
        standardize: whether to shift and scale features to mean 0 and standard deviation 1 over the training rows,
            without validation rows.
        positive_label: the label of the positive class; all others are negative. ``None``: the larger of -1/1, 0/1 or
            1/2.
        zero_based: whether feature indices start at 0; LIBSVM's start at 1.
        cache_dir: where to cache parsed arrays. ``None`` caches only files of 64 MiB or more, in the user's cache
            folder.
        max_gib: largest dense array that is made, in GiB. That of HIGGS takes 1.2.
        download: whether to download missing files of ijcnn1, HIGGS and SUSY to ``root``, under the names of
            :data:`~lightning_tpauc.data.source_files.SOURCES`.
        **kwargs: arguments of :class:`~lightning_tpauc.PosNegDataModule`, without its data sets.

    Raises:
        ArgumentError: if arguments contradict each other or are out of range; in ``prepare_data``: ``download`` of a
            file without a known source.
        DataError: in ``prepare_data`` and ``setup``: a file is missing, can't be downloaded or does not parse.

    Example:
        >>> import tempfile
        >>> root = Path(tempfile.mkdtemp())
        >>> _ = (root / "tiny.txt").write_text("+1 1:3 2:1\n-1 1:1\n-1 2:1\n-1 1:2\n+1 1:4\n")
        >>> datamodule = LIBSVMDataModule(str(root), "tiny.txt", test_fraction=0.2, num_pos=1, num_neg=1)
        >>> datamodule.setup("fit")
        >>> datamodule.num_positives, datamodule.num_negatives
        (1, 3)
    """

    def __init__(
        self,
        root: str,
        train_file: str,
        test_file: str | None = None,
        *,
        test_fraction: float | None = None,
        remove_positives: float = 0.0,
        standardize: bool = True,
        positive_label: float | None = None,
        zero_based: bool = False,
        cache_dir: str | None = None,
        max_gib: float = 4.0,
        download: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            train_dataset=None, val_dataset=None, test_dataset=None, predict_dataset=None, negatives=None, **kwargs
        )
        if test_file is not None and test_fraction is not None:
            msg = f"Set `test_file` or `test_fraction`, but got both: {test_file!r} and {test_fraction}."
            raise ArgumentError(msg)
        for name, share, least in (("test_fraction", test_fraction, "("), ("remove_positives", remove_positives, "[")):
            if share is not None and not (0.0 < share < 1.0 or (share == 0.0 and least == "[")):
                msg = f"Expected `{name}` to be in {least}0, 1), but got {share}."
                raise ArgumentError(msg)
        self.root = root
        self.train_file, self.test_file = train_file, test_file
        self.test_fraction, self.remove_positives = test_fraction, remove_positives
        self.standardize, self.positive_label = standardize, positive_label
        self.zero_based, self.cache_dir, self.max_gib = zero_based, cache_dir, max_gib
        self.download = download
        self._read: Datasets | None = None

    def prepare_data(self) -> None:
        """Download if asked to, and parse large files once per machine, so that all ranks map the same arrays."""
        if self.download:
            for name in self._names():
                download_missing(Path(self.root) / name)
        self._files()

    def build_datasets(self, stage: str | None) -> Datasets:  # noqa: ARG002  # test rows need the training rows' scale
        """Read the files at the first call."""
        if self._read is None:
            files = self._files()
            path = str(Path(self.root) / self.train_file)
            labels = _binary([file.labels for file in files], self.positive_label, path)
            data = [ArrayDataset(file.features, label) for file, label in zip(files, labels, strict=True)]
            rows = [np.arange(len(label)) for label in labels]
            if self.test_fraction is not None:
                cut = len(rows[0]) - round(self.test_fraction * len(rows[0]))
                data, labels, rows = data * 2, labels * 2, [rows[0][:cut], rows[0][cut:]]
            rows = [self._without_positives(r, labels[i], i) for i, r in enumerate(rows)]
            parts = [Subset(d, r) for d, r in zip(data, rows, strict=True)]  # type: ignore[arg-type]  # any sequence does
            test = parts[1] if len(parts) > 1 else None
            self._read = Datasets(train=parts[0], test=test, predict=test)
        return self._read

    def fit_transforms(self, datasets: Datasets, train_rows: NDArray[np.int64]) -> Datasets:
        """Standardise all parts with the training rows' mean and standard deviation."""
        if not self.standardize:
            return datasets
        shift, scale = _moments(datasets.train.dataset.features, datasets.train.indices[train_rows])

        def transformed(part: Any) -> Any:
            data = part.dataset
            return Subset(ArrayDataset(data.features, data.targets, shift, scale), part.indices)

        return Datasets(*(None if part is None else transformed(part) for part in datasets))

    def _names(self) -> list[str]:
        return [name for name in (self.train_file, self.test_file) if name is not None]

    def _files(self) -> list[SVMLightData]:
        files = [self._file(name) for name in self._names()]
        width = max(file.features.shape[1] for file in files)
        return [
            file if file.features.shape[1] == width else self._file(name, width)
            for name, file in zip(self._names(), files, strict=True)
        ]

    def _file(self, name: str, num_features: int | None = None) -> SVMLightData:
        path = Path(self.root) / name
        require_file(path)
        changed = path.stat().st_mtime_ns, path.stat().st_size
        cache_dir = None if self.cache_dir is None else Path(self.cache_dir)
        return _read_once(path.resolve(), changed, num_features, self.zero_based, cache_dir, self.max_gib)

    def _without_positives(self, rows: NDArray[np.int64], labels: NDArray[np.int8], part: int) -> NDArray[np.int64]:
        positives = rows[labels[rows] == 1]
        left = len(positives) - round(self.remove_positives * len(positives))
        if left == len(positives):
            return rows
        kept = permute(np.arange(left), np.array(part), len(positives), seed=self.split_seed, purpose=Purpose.REMOVAL)
        return np.sort(np.concatenate([rows[labels[rows] == 0], positives[kept]]))


def _binary(labels: list[NDArray[np.float32]], positive: float | None, path: str) -> list[NDArray[np.int8]]:
    """Map labels to 0 and 1, and log the mapping."""
    values = np.unique(np.concatenate([np.unique(part) for part in labels])).tolist()
    if positive is None:
        pair = next((pair for pair in _PAIRS if set(values) <= set(pair)), None)
        if pair is None:
            msg = f"Expected the labels -1/1, 0/1 or 1/2 in {path}, but found {values[:6]}. Set `positive_label`."
            raise DataError(msg)
        positive = pair[1]
    if positive not in values:
        msg = f"Expected the positive label {positive} in {path}, but found {values[:6]}. Set `positive_label`."
        raise DataError(msg)
    rank_zero_info(f"{path}: label {positive:g} is the positive class; labels {[f'{v:g}' for v in values]}.")
    return [(part == positive).astype(np.int8) for part in labels]


def _moments(features: NDArray[np.float32], rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and inverse standard deviation over ``rows``, in bounded memory; constant features keep scale 1."""
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler()
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        scaler.partial_fit(features[rows[start : start + _ROWS_AT_ONCE]])
    return scaler.mean_.astype(np.float32), (1.0 / scaler.scale_).astype(np.float32)


class SVMLightData(NamedTuple):
    """A parsed file.

    Attributes:
        features: float32 array ``(n, d)``, possibly a read-only memory map.
        labels: float32 array ``(n,)``, as in the file.
    """

    features: NDArray[np.float32]
    labels: NDArray[np.float32]


def read_svmlight(
    path: Path,
    *,
    num_features: int | None = None,
    zero_based: bool = False,
    cache_dir: Path | None = None,
    max_gib: float = 4.0,
) -> SVMLightData:
    r"""Read a file, plain or compressed as its suffix ``.bz2``, ``.gz`` or ``.xz`` says.

    Args:
        path: the file.
        num_features: number of columns; the largest index in the file if ``None``.
        zero_based: whether feature indices start at 0.
        cache_dir: where to cache the arrays of this file. ``None`` caches only text files of 64 MiB or more, in the
            user's cache folder. The key is the file's path, size and modification time and the options.
        max_gib: largest dense array that is made, in GiB. That of HIGGS takes 1.2.

    Raises:
        DataError: if the file is missing, is damaged, does not parse or holds values that are not finite; if the dense
            array exceeds ``max_gib``.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "two.txt"
        >>> _ = path.write_text("+1 1:0.5 3:2\n-1 2:1\n")
        >>> read_svmlight(path).features.tolist()
        [[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]]
    """
    require_file(path)
    if cache_dir is None and path.stat().st_size < _CACHED_FROM_BYTES:
        table = _parse(path, num_features, zero_based, max_gib)
    else:
        changed = path.stat().st_size, path.stat().st_mtime_ns
        key = hashlib.sha256(repr((str(path.resolve()), changed, num_features, zero_based)).encode()).hexdigest()
        cached = (cache_dir or default_cache_dir()) / f"{path.name}-{key[:16]}.npy"
        if not cached.is_file():
            with replacing(cached) as file:
                np.save(file, _parse(path, num_features, zero_based, max_gib))
        table = np.load(cached, mmap_mode="r")
    return SVMLightData(table[:, :-1], np.array(table[:, -1]))


@lru_cache(maxsize=4)  # the data modules of a cross-validation share the arrays
def _read_once(
    path: Path,
    changed: tuple[int, int],  # noqa: ARG001  # part of the key
    num_features: int | None,
    zero_based: bool,
    cache_dir: Path | None,
    max_gib: float,
) -> SVMLightData:
    found = read_svmlight(path, num_features=num_features, zero_based=zero_based, cache_dir=cache_dir, max_gib=max_gib)
    found.features.flags.writeable = found.labels.flags.writeable = False
    return found


def _parse(path: Path, num_features: int | None, zero_based: bool, max_gib: float) -> NDArray[np.float32]:
    """The dense features of a file, and its labels as the last column."""
    from sklearn.datasets import load_svmlight_file

    blocks: list[tuple[Any, NDArray[Any]]] = []
    for text in _texts(path):
        try:
            sparse, labels = load_svmlight_file(
                io.BytesIO(text), n_features=num_features, dtype=np.float32, zero_based=zero_based
            )
        except (ValueError, OverflowError) as error:  # an index beyond 32 bits overflows
            msg = (
                f"{path} does not parse as svmlight text: {error}. Lines read `label index:value ...` with growing "
                "indices; set `zero_based=True` if they start at 0."
            )
            raise DataError(msg) from error
        if not (np.isfinite(labels).all() and np.isfinite(sparse.data).all()):
            msg = f"{path} holds values that are not finite. Remove those rows, or fill them in."
            raise DataError(msg)
        blocks.append((sparse, labels))
    rows, width = sum(len(labels) for _, labels in blocks), max((x.shape[1] for x, _ in blocks), default=0)
    gib = rows * (width + 1) * 4 / 2**30
    if not rows or gib > max_gib:
        msg = f"{path} has {rows} rows of {width} features"
        msg += f", {gib:.1f} GiB when dense, more than `max_gib`={max_gib}. Raise that." if rows else ": it is empty."
        raise DataError(msg)
    table = np.zeros((rows, width + 1), dtype=np.float32)
    end = 0
    for sparse, labels in blocks:
        start, end = end, end + len(labels)
        table[start:end, : sparse.shape[1]] = sparse.toarray()
        table[start:end, -1] = labels
    return table


def _texts(path: Path) -> Iterator[bytes]:
    """Blocks of whole lines; a bar shows how many bytes of text have been read.

    Raises:
        DataError: if the file can't be decompressed.
    """
    try:
        with (
            _OPENERS.get(path.suffix, open)(path, "rb") as file,
            tqdm(desc=f"Reading {path.name}", unit="B", unit_scale=True, leave=False, disable=None) as bar,
        ):
            while lines := file.readlines(_BLOCK_BYTES):
                text = b"".join(lines)
                bar.update(len(text))
                yield text
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        msg = f"{path} can't be read: {error}. Its end may be missing: copy or download it again."
        raise DataError(msg) from error
