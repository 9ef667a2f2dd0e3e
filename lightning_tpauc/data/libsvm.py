"""LIBSVM data sets: ijcnn1, HIGGS, SUSY and others of that format."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import logging
import lzma
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray
from torch.utils.data import Subset
from tqdm import tqdm

from lightning_tpauc.data.datamodule import PosNegDataModule
from lightning_tpauc.data.examples import ArrayDataset, Datasets
from lightning_tpauc.data.seeding import Purpose, permute
from lightning_tpauc.data.source_files import (
    SOURCES,
    add_checksum,
    default_cache_dir,
    download_missing,
    has_checksum,
    require_file,
)
from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.files import replacing

_ROWS_AT_ONCE = 1 << 16
_PAIRS = ((-1.0, 1.0), (0.0, 1.0), (1.0, 2.0))
# Arrays of files without a cache on disk. They are kept as long as a data module holds them.
_HELD: WeakValueDictionary[tuple[Any, ...], NDArray[Any]] = WeakValueDictionary()


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
        cache_dir: where to cache parsed arrays. ``None`` caches only files of 64 MiB or more and arrays of 256 MiB or
            more, in the user's cache folder.
        max_gib: largest dense array that is made, in GiB. That of HIGGS takes 1.2.
        download: whether to download missing files of ijcnn1, HIGGS and SUSY to ``root``, under the names of
            :data:`~lightning_tpauc.data.source_files.SOURCES`.
        **kwargs: arguments of :class:`~lightning_tpauc.PosNegDataModule`, without its data sets.

    Raises:
        ArgumentError: if arguments contradict each other or are out of range; in ``prepare_data``: ``download`` of a
            file without a known source; the arrays can't be kept in ``cache_dir``.
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
        self._held: list[SVMLightData] = []

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
        names = self._names()
        files = [self._file(name) for name in names]
        # Other stages and other data modules find them in _HELD as long as this one lives.
        self._held = [file for file in files if not isinstance(file.features, np.memmap)]
        width = max(file.features.shape[1] for file in files)
        return [self._widened(name, file, width) for name, file in zip(names, files, strict=True)]

    def _widened(self, name: str, file: SVMLightData, width: int) -> SVMLightData:
        missing = width - file.features.shape[1]
        if missing == 0:
            return file
        if isinstance(file.features, np.memmap):
            return self._file(name, width)  # The wider array is cached on disk, too.
        return file._replace(features=np.pad(file.features, ((0, 0), (0, missing))))

    def _file(self, name: str, num_features: int | None = None) -> SVMLightData:
        path = Path(self.root) / name
        if path.name in SOURCES:
            require_file(path, downloads=True)
        cache_dir = None if self.cache_dir is None else Path(self.cache_dir)
        options: dict[str, Any] = {"num_features": num_features, "zero_based": self.zero_based, "max_gib": self.max_gib}
        key = *_identity(path), cache_dir, *options.values()
        features, labels = _HELD.get(("features", *key)), _HELD.get(("labels", *key))
        if features is None or labels is None:
            features, labels = read_svmlight(path, cache_dir=cache_dir, **options)
            features.flags.writeable = labels.flags.writeable = False  # Other data modules may hold the same arrays.
            _HELD.update({("features", *key): features, ("labels", *key): labels})
        return SVMLightData(features, labels)

    def _without_positives(self, rows: NDArray[np.int64], labels: NDArray[np.int8], part: int) -> NDArray[np.int64]:
        positives = rows[labels[rows] == 1]
        left = len(positives) - round(self.remove_positives * len(positives))
        if left == len(positives):
            return rows
        kept = permute(np.arange(left), np.array(part), len(positives), seed=self.split_seed, purpose=Purpose.REMOVAL)
        return np.sort(np.concatenate([rows[labels[rows] == 0], positives[kept]]))


def _identity(path: Path) -> tuple[Any, ...]:
    """A key that changes when the file does."""
    if not path.is_file():
        return (path,)
    status = path.stat()
    return path.resolve(), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _binary(labels: list[NDArray[np.float64]], positive: float | None, path: str) -> list[NDArray[np.int8]]:
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


_log = logging.getLogger(__name__)

# Text files of this size or more are cached. They have about 700,000 rows of 100 bytes.
CACHED_FROM_BYTES = 64 << 20
# Larger arrays are cached, too. Their text may be small if rows are sparse or the file is compressed.
CACHED_FROM_ARRAY_BYTES = 256 << 20
_BLOCK_BYTES = 16 << 20
# Rows are made dense in blocks of at most this size, or one by one.
_DENSE_BYTES = 64 << 20
# 10 million features fit into the longest line.
_LONGEST_LINE = 256 << 20
# A dense array that is more often larger than its text points to a wrong index.
_MOST_SPARSE = 10_000
# Python reads 1_0 as 10. Comments may hold underscores.
_UNDERSCORE = re.compile(rb"^[^#\n]*_", re.MULTILINE)
# Part of the cache's key. Raise it when the stored arrays change.
_VERSION = 1

Features = NDArray[np.float32]
Labels = NDArray[np.float64]


class SVMLightData(NamedTuple):
    """A parsed file.

    Attributes:
        features: float32 array ``(n, d)``, possibly a read-only memory map.
        labels: float64 array ``(n,)``, as in the file.
    """

    features: Features
    labels: Labels


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
        cache_dir: where to cache the arrays of this file. ``None`` caches only text files of 64 MiB or more and arrays
            of 256 MiB or more, in the user's cache folder. The key is the file's path, size and modification time and
            the options. A damaged cache is made again.
        max_gib: largest dense array that is made, in GiB. That of HIGGS takes 1.2.

    Raises:
        ArgumentError: if the cache can't be written.
        DataError: if the file is missing, is damaged, does not parse or holds values that are not finite; if the dense
            array exceeds ``max_gib`` or is out of proportion with the text.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "two.txt"
        >>> _ = path.write_text("+1 1:0.5 3:2\n-1 2:1\n")
        >>> read_svmlight(path).features.tolist()
        [[0.5, 0.0, 2.0], [0.0, 1.0, 0.0]]
    """
    if not path.is_file():
        msg = f"There is no file {path}. Set the folder with `root` (`--data.root DIR`), or correct the file's name."
        raise DataError(msg)
    blocks = _Blocks(path, num_features, zero_based, max_gib)
    cached = _cache_path(cache_dir or default_cache_dir(), path, num_features, zero_based)
    found = _read_cache(cached)
    if found is None and cache_dir is None and path.stat().st_size < CACHED_FROM_BYTES:
        found = _read_small(blocks)
    if found is None:
        _write_cache(blocks, cached)
        found = _read_cache(cached)
    if found is None:
        msg = f"The arrays of {path} can't be read back from {cached}: its disk is faulty. Set another `cache_dir`."
        raise DataError(msg)
    return found


class _Blocks:
    """Iterates over a file in dense blocks of some ten thousand rows."""

    def __init__(self, path: Path, num_features: int | None, zero_based: bool, max_gib: float) -> None:
        self.path = path
        self.num_features = num_features
        self.zero_based = zero_based
        self.max_gib = max_gib

    def __iter__(self) -> Iterator[SVMLightData]:
        lines, rows, width, size = 0, 0, self.num_features or 0, 0
        for text in self._texts():
            sparse, labels = self._parse_or_say_where(text, lines)
            self._check_finite(sparse, labels, rows)
            lines, rows, width = lines + text.count(b"\n"), rows + sparse.shape[0], max(width, sparse.shape[1])
            size += len(text)
            self._check_size(rows, width, size)
            step = max(1, _DENSE_BYTES // (4 * max(1, sparse.shape[1])))
            for start in range(0, sparse.shape[0], step):
                yield SVMLightData(sparse[start : start + step].toarray(), labels[start : start + step])
        if rows == 0:
            msg = f"{self.path} has no rows."
            raise DataError(msg)

    def _texts(self) -> Iterator[bytes]:
        """Blocks of whole lines. A bar shows how many bytes of the file have been read, before decompression."""
        size = self.path.stat().st_size
        bar = tqdm(desc=f"Reading {self.path.name}", total=size, unit="B", unit_scale=True, leave=False, disable=None)
        with self.path.open("rb") as raw, bar:
            rest = b""
            with _decompressed(raw, self.path.suffix) as file:
                while chunk := self._read(file):
                    lines, newline, tail = chunk.rpartition(b"\n")
                    if newline:
                        yield rest + lines + newline
                        rest = tail
                    else:
                        rest += chunk
                    self._check_text(chunk, rest)
                    bar.update(raw.tell() - bar.n)
            if rest.strip():
                yield rest

    def _read(self, file: IO[bytes]) -> bytes:
        try:
            return file.read(_BLOCK_BYTES)
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            msg = (
                f"{self.path} can't be read as a {self.path.suffix or 'plain'} file: {error}. Its end may be missing: "
                "copy or download it again."
            )
            raise DataError(msg) from error

    def _check_text(self, chunk: bytes, rest: bytes) -> None:
        found = "nul bytes" if b"\0" in chunk else "a line of more than 256 MiB" if len(rest) > _LONGEST_LINE else None
        if found is not None:
            msg = f"{self.path} holds {found} and is no svmlight text: copy or download it again, or correct its name."
            raise DataError(msg)

    def _parse_or_say_where(self, text: bytes, lines_before: int) -> tuple[Any, Labels]:
        try:
            return self._parse(text)
        except (ValueError, OverflowError) as error:  # an index beyond 32 bits overflows
            lines = text.split(b"\n")
            bad = self._first_bad(lines)
            content = lines[bad][:60].decode(errors="replace")
            msg = (
                f"{self.path} does not parse as svmlight text: line {lines_before + bad + 1} reads {content!r} "
                f"({error}). Lines read `label index:value ...`, indices growing; set `zero_based=True` if indices "
                "start at 0."
            )
            raise DataError(msg) from error

    def _parse(self, text: bytes) -> tuple[Any, Labels]:
        from sklearn.datasets import load_svmlight_file

        if b"_" in text and _UNDERSCORE.search(text):
            msg = "numbers have no underscore"
            raise ValueError(msg)
        sparse, labels = load_svmlight_file(
            io.BytesIO(text), n_features=self.num_features, dtype=np.float32, zero_based=self.zero_based
        )
        return sparse, labels.astype(np.float64)

    def _first_bad(self, lines: list[bytes]) -> int:
        """Halve the lines that hold the first bad one; all of this takes as long as parsing them once."""
        low, high = 0, len(lines)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._parses(lines[low:middle]) else (low, middle)
        return low

    def _parses(self, lines: list[bytes]) -> bool:
        try:
            self._parse(b"\n".join(lines))
        except (ValueError, OverflowError):
            return False
        return True

    def _check_finite(self, sparse: Any, labels: Labels, first_row: int) -> None:
        finite = np.isfinite(labels)
        entries = sparse.tocoo() if finite.all() and not np.isfinite(sparse.data).all() else None
        if entries is not None:
            finite[entries.row[~np.isfinite(entries.data)]] = False
        if not finite.all():
            row = first_row + int(finite.argmin())
            msg = f"{self.path} has a value that is not finite in row {row} (from 0). Remove that row, or fill it in."
            raise DataError(msg)

    def _check_size(self, rows: int, width: int, size: int) -> None:
        gib = rows * width * 4 / 2**30
        if gib > self.max_gib:
            msg = (
                f"{self.path} has {width} features; dense, its first {rows} rows alone take {gib:.1f} GiB, more than "
                f"`max_gib`={self.max_gib}. Raise that, or reduce the features first."
            )
            raise DataError(msg)
        if rows * width * 4 > max(CACHED_FROM_ARRAY_BYTES, _MOST_SPARSE * size) and self.num_features is None:
            msg = (
                f"{self.path} has the index {width} in {rows} rows of {size} bytes, {gib:.1f} GiB when dense. "
                f"Correct the index; `read_svmlight(num_features={width})` takes it as it is."
            )
            raise DataError(msg)


def _decompressed(raw: IO[bytes], suffix: str) -> IO[bytes]:
    if suffix == ".bz2":
        return bz2.BZ2File(raw)
    if suffix == ".xz":
        return lzma.LZMAFile(raw)
    return gzip.GzipFile(fileobj=raw) if suffix == ".gz" else raw  # type: ignore[return-value]


def _cache_path(folder: Path, path: Path, num_features: int | None, zero_based: bool) -> Path:
    status = path.stat()
    what = (_VERSION, str(path.resolve()), status.st_size, status.st_mtime_ns, num_features, zero_based)
    key = hashlib.blake2b(repr(what).encode(), digest_size=8).hexdigest()
    return folder / f"{path.name}-{key}.npy"


def _read_cache(cached: Path) -> SVMLightData | None:
    """What an earlier call stored; ``None`` if there is nothing, or the file is damaged."""
    if not cached.is_file():
        return None
    if not has_checksum(cached):
        _log.warning("The cache %s is damaged and is made again.", cached)
        return None
    features = np.load(cached, mmap_mode="r")
    with cached.open("rb") as file:
        file.seek(features.offset + features.nbytes)
        return SVMLightData(features, np.load(file))


def _read_small(blocks: _Blocks) -> SVMLightData | None:
    """Both arrays in memory; ``None`` if they are too large for that."""
    parts: list[SVMLightData] = []
    rows, width = 0, 0
    for part in blocks:
        rows, width = rows + len(part.labels), max(width, part.features.shape[1])
        if 4 * rows * width > CACHED_FROM_ARRAY_BYTES:
            return None
        parts.append(part)
    features = np.concatenate([_widened(part.features, width) for part in parts])
    return SVMLightData(features, np.concatenate([part.labels for part in parts]))


def _write_cache(blocks: _Blocks, cached: Path) -> None:
    """Write one file: the features, the labels, and a checksum.

    It is not written through a memory map, since a full disk then kills the process.
    """
    try:
        # The number of features is known at the end only. Until then, dense blocks wait in a file without a name, which
        # the system removes even if the process is killed.
        with replacing(cached) as file, tempfile.TemporaryFile(dir=cached.parent) as waiting:
            labels, shapes = [], []
            for block in blocks:
                waiting.write(block.features.data)
                labels.append(block.labels)
                shapes.append(block.features.shape)
            total, width = sum(rows for rows, _ in shapes), max(width for _, width in shapes)
            header = {"descr": np.dtype(np.float32).str, "fortran_order": False, "shape": (total, width)}
            np.lib.format.write_array_header_1_0(file, header)
            waiting.seek(0)
            for shape in shapes:
                features = np.frombuffer(waiting.read(4 * shape[0] * shape[1]), np.float32).reshape(shape)
                file.write(_widened(features, width).data)
            np.save(file, np.concatenate(labels))
            add_checksum(file)
        # Earlier versions kept two arrays without a checksum, in a folder of this name.
        shutil.rmtree(cached.with_suffix(""), ignore_errors=True)
    except OSError as error:
        msg = (
            f"Can't keep the arrays of {blocks.path} in {cached.parent} ({error}). Set `cache_dir` to a folder that "
            "can be written and has room."
        )
        raise ArgumentError(msg) from error


def _widened(features: Features, width: int) -> Features:
    missing = width - features.shape[1]
    return np.pad(features, ((0, 0), (0, missing))) if missing else features
