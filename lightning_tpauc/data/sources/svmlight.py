"""Reading svmlight / LIBSVM text of any size into dense float32 arrays, with bounded memory.

The text is parsed in blocks. Small files stay in memory; large ones become ``.npy`` files in a cache, which are memory
mapped: HIGGS (11 million rows, 8 GB of text) is parsed once, and later runs start at once and share one copy.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import logging
import lzma
import re
import shutil
import time
import tokenize
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from lightning_tpauc.data.sources.cache import default_cache_dir
from lightning_tpauc.errors import ArgumentError, DataError

__all__ = ("SVMLightData", "read_svmlight")

_log = logging.getLogger(__name__)

# Files from this size on are parsed into the cache: 100 bytes a line make about 700,000 rows.
CACHED_FROM_BYTES = 64 << 20
# So are those whose arrays exceed this: text of sparse rows, or compressed text, may be small.
CACHED_FROM_ARRAY_BYTES = 256 << 20
_BLOCK_BYTES = 16 << 20
# Rows are made dense so many bytes at a time, or one by one.
_DENSE_BYTES = 64 << 20
# A line is at most so long, 10 million features, and a dense array at most so many times as large as its text.
_LONGEST_LINE = 256 << 20
_MOST_SPARSE = 10_000
_DAY = 86_400
# Python reads 1_0 as 10; names in comments may have them.
_UNDERSCORE = re.compile(rb"^[^#\n]*_", re.MULTILINE)
# Part of the cache's key: raise it when the stored arrays change.
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
        cache_dir: where to keep the arrays of this file; ``None`` keeps only those of files of 64 MiB or more, or that
            take 256 MiB themselves, in the user's cache folder. The key is the path,
            size, modification time and the options. What can't be read back there is made again.
        max_gib: refuse to make dense arrays larger than this, in GiB; those of HIGGS take 1.2.

    Raises:
        ArgumentError: if the cache can't be written.
        DataError: if the file is missing, damaged or does not parse, holds values that are not finite, or is too large
            when dense: beyond ``max_gib`` or the memory, or out of proportion with its text.

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
    folder = (cache_dir or default_cache_dir()) / f"{path.name}-{_key(path, num_features, zero_based)}"
    found = _read_cache(folder)
    if found is None and cache_dir is None and path.stat().st_size < CACHED_FROM_BYTES:
        found = _read_small(blocks)
    if found is None:
        _write_cache(blocks, folder)
        found = _read_cache(folder)
    if found is None:
        msg = f"The arrays of {path} can't be read back from {folder}. Remove that folder, or set another `cache_dir`."
        raise DataError(msg)
    return found


class _Blocks:
    """Iterates over a file as dense blocks of some ten thousand rows."""

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
        """Blocks of whole lines; a bar shows how much of the file, compressed or not, has been read."""
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
            line, content = self._first_bad_line(text)
            msg = (
                f"{self.path} does not parse as svmlight text: line {lines_before + line} reads {content!r} ({error}). "
                "Lines read `label index:value ...`, indices growing; set `zero_based=True` if indices start at 0."
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

    def _first_bad_line(self, text: bytes) -> tuple[int, str]:
        """Number, from 1, and beginning of the line at which parsing fails, in as long as a second parse takes."""
        lines = text.split(b"\n")
        good, bad = 0, len(lines)  # the first `good` lines parse, the first `bad` don't
        while bad - good > 1:
            middle = (good + bad) // 2
            try:
                self._parse(b"\n".join(lines[good:middle]))
                good = middle
            except (ValueError, OverflowError):
                bad = middle
        return bad, lines[good][:60].decode(errors="replace")

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


def _key(path: Path, num_features: int | None, zero_based: bool) -> str:
    status = path.stat()
    what = (_VERSION, str(path.resolve()), status.st_size, status.st_mtime_ns, num_features, zero_based)
    return hashlib.blake2b(repr(what).encode(), digest_size=8).hexdigest()


def _read_cache(folder: Path) -> SVMLightData | None:
    """What an earlier call stored; ``None`` if it is not there or damaged, and it then is removed."""
    if not folder.is_dir():
        return None
    try:
        # a map compares the header's shape with the file's size before anything is read
        features, labels = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("features", "labels"))
        if (features.ndim, features.dtype, labels.shape, labels.dtype) == (
            2,
            np.float32,
            features.shape[:1],
            np.float64,
        ):
            return SVMLightData(features, np.array(labels))
        error: Exception = ValueError(
            f"features {features.dtype} {features.shape}, labels {labels.dtype} {labels.shape}"
        )
    except (AttributeError, EOFError, OSError, OverflowError, SyntaxError, tokenize.TokenError, ValueError) as failure:
        error = failure
    _log.warning("The cache %s can't be read (%s) and is made again.", folder, error)
    shutil.rmtree(folder, ignore_errors=True)
    return None


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


def _write_cache(blocks: _Blocks, folder: Path) -> None:
    """Make the folder of both arrays, or say why that is not possible."""
    try:
        _write_folder(blocks, folder)
    except OSError as error:
        msg = (
            f"Can't keep the arrays of {blocks.path} in {folder.parent} ({error}). Set `cache_dir` to a folder that "
            "can be written and has room."
        )
        raise ArgumentError(msg) from error


def _write_folder(blocks: _Blocks, folder: Path) -> None:
    """Write both arrays under another name and rename the folder, so that a crash leaves no half-written cache."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f"{folder.name}.*"):  # by a process that was killed; another one may be at work
        if left.stat().st_mtime < time.time() - _DAY:
            shutil.rmtree(left, ignore_errors=True)
    work = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}")  # not mkdtemp's, which nobody else may read
    work.mkdir()
    try:
        # the width is known at the end only, so blocks are kept as files of their own until then
        labels, shapes = [], []
        for i, block in enumerate(blocks):
            np.save(work / f"{i}.npy", block.features)
            labels.append(block.labels)
            shapes.append(block.features.shape)
        total, width = sum(rows for rows, _ in shapes), max(width for _, width in shapes)
        header = {"descr": np.dtype(np.float32).str, "fortran_order": False, "shape": (total, width)}
        # not through a memory map: where the disk is full, that kills the process
        with (work / "features.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for i in range(len(shapes)):
                file.write(_widened(np.load(work / f"{i}.npy"), width).data)
                (work / f"{i}.npy").unlink()
        np.save(work / "labels.npy", np.concatenate(labels))
        try:
            work.rename(folder)
        except OSError:  # another process was quicker
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _widened(features: Features, width: int) -> Features:
    return np.pad(features, ((0, 0), (0, width - features.shape[1])))
