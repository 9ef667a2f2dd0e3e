"""LIBSVM data sets: ijcnn1, HIGGS, SUSY and others of that format."""

import bz2
import gzip
import hashlib
import io
import lzma
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray
from torch.utils.data import Subset

from lightning_tpauc.data.examples import ArrayDataset, Datasets
from lightning_tpauc.data.seeding import Purpose, permute
from lightning_tpauc.data.source_files import SourceDataModule, default_cache_dir, require_file
from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.files import replacing
from lightning_tpauc.functional.checks import require_range

_ROWS_AT_ONCE = 1 << 16
_OPENERS: dict[str, Any] = {".bz2": bz2.open, ".xz": lzma.open, ".gz": gzip.open}


class LIBSVMDataModule(SourceDataModule):
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
        positive_label: the label of the positive class; all others are negative. ``None``: the larger one of two.
        cache_dir: where to cache parsed arrays; ``None``: ``$XDG_CACHE_HOME/lightning_tpauc`` or
            ``~/.cache/lightning_tpauc``. Dense HIGGS takes 1.2 GiB.
        download: whether to download missing files of ijcnn1, HIGGS and SUSY to ``root``, under the names of
            :data:`~lightning_tpauc.data.source_files.SOURCES`.
        **kwargs: arguments of :class:`~lightning_tpauc.PosNegDataModule`, without its data sets.

    Raises:
        ArgumentError: if arguments contradict each other or are out of range.
        DataError: in ``prepare_data`` and ``setup``: a file is missing, can't be downloaded or does not parse.

    Example:
        >>> import tempfile
        >>> root = tempfile.mkdtemp()
        >>> _ = Path(root, "tiny.txt").write_text("+1 1:3 2:1\n-1 1:1\n-1 2:1\n-1 1:2\n+1 1:4\n")
        >>> datamodule = LIBSVMDataModule(root, "tiny.txt", test_fraction=0.2, cache_dir=root, num_pos=1, num_neg=1)
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
        cache_dir: str | None = None,
        download: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if test_file is not None and test_fraction is not None:
            raise ArgumentError(f"Set `test_file` or `test_fraction`, but got both: {test_file!r} and {test_fraction}.")
        if test_fraction is not None:
            require_range("test_fraction", test_fraction, 0.0, 1.0, open_low=True, open_high=True)
        require_range("remove_positives", remove_positives, 0.0, 1.0, open_high=True)
        #: The training file, and the test file if there is one.
        self.paths = [Path(root) / name for name in (train_file, test_file) if name is not None]
        self.test_fraction, self.remove_positives = test_fraction, remove_positives
        self.standardize, self.positive_label = standardize, positive_label
        self.cache_dir, self.download = default_cache_dir() if cache_dir is None else Path(cache_dir), download

    def prepare_data(self) -> None:
        """Download if asked to, and parse once per machine, so that all ranks map the same arrays."""
        for path in self.paths:
            require_file(path, download=self.download)
        self._tables()

    def load(self) -> Datasets:
        """Read the files; test rows need the training rows' scale."""
        tables = self._tables()
        labels = _binary([np.array(table[:, -1]) for table in tables], self.positive_label, self.paths[0])
        data = [ArrayDataset(table[:, :-1], own) for table, own in zip(tables, labels, strict=True)]
        rows = [np.arange(len(own)) for own in labels]
        if self.test_fraction is not None:
            cut = len(rows[0]) - round(self.test_fraction * len(rows[0]))
            data, labels, rows = data * 2, labels * 2, [rows[0][:cut], rows[0][cut:]]
        kept = [self._without_positives(part, labels[k], k) for k, part in enumerate(rows)]
        parts = [Subset(d, part) for d, part in zip(data, kept, strict=True)]  # type: ignore[arg-type]  # any sequence
        return Datasets(train=parts[0], test=parts[1] if len(parts) > 1 else None)

    def fit_transforms(self, datasets: Datasets, train_rows: NDArray[np.int64]) -> Datasets:
        """Standardise all parts with the training rows' mean and standard deviation."""
        if not self.standardize:
            return datasets
        from sklearn.preprocessing import StandardScaler

        # Constant features keep scale 1. Blocks bound the memory.
        scaler, rows = StandardScaler(), datasets.train.indices[train_rows]
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            scaler.partial_fit(datasets.train.dataset.features[rows[start : start + _ROWS_AT_ONCE]])
        shift, scale = scaler.mean_.astype(np.float32), (1.0 / scaler.scale_).astype(np.float32)

        def standardised(part: Any) -> Any:
            return Subset(ArrayDataset(part.dataset.features, part.dataset.targets, shift, scale), part.indices)

        return Datasets(*(None if part is None else standardised(part) for part in datasets))

    def _tables(self) -> list[NDArray[np.float32]]:
        """Features and, in the last column, labels of each file, as memory maps of the cache."""
        for path in self.paths:
            require_file(path)
        files = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in self.paths]
        key = hashlib.sha256(repr(files).encode()).hexdigest()[:20]
        cached = [self.cache_dir / f"{path.name}-{key}-{k}.npy" for k, path in enumerate(self.paths)]
        if not all(path.is_file() for path in cached):
            for path, table in zip(cached, _parse(self.paths), strict=True):
                with replacing(path) as file:
                    np.save(file, table)
        return [np.load(path, mmap_mode="r") for path in cached]

    def _without_positives(self, rows: NDArray[np.int64], labels: NDArray[np.int8], part: int) -> NDArray[np.int64]:
        positives = rows[labels[rows] == 1]
        left = len(positives) - round(self.remove_positives * len(positives))
        kept = permute(np.arange(left), np.array(part), len(positives), seed=self.split_seed, purpose=Purpose.REMOVAL)
        return np.sort(np.concatenate([rows[labels[rows] == 0], positives[kept]]))


def _binary(labels: list[NDArray[np.float32]], positive: float | None, path: Path) -> list[NDArray[np.int8]]:
    """Labels as 0 and 1; the log says which is which."""
    values = np.unique(np.concatenate(labels)).tolist()
    if positive is None and len(values) == 2:
        positive = values[1]
    if positive is None or positive not in values:
        wanted = "two labels" if positive is None else f"positive label {positive}"
        raise DataError(f"Expected the {wanted} in {path}, but found {values[:6]}. Set `positive_label`.")
    rank_zero_info(f"{path}: label {positive:g} is the positive class; labels {[f'{v:g}' for v in values]}.")
    return [(part == positive).astype(np.int8) for part in labels]


def _parse(paths: Sequence[Path]) -> list[NDArray[np.float32]]:
    """Dense tables of one width, with the labels as last column."""
    from sklearn.datasets import load_svmlight_files

    names = " and ".join(map(str, paths))
    rank_zero_info(f"Parsing {names}; later runs read the cache.")
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(_OPENERS.get(path.suffix, open)(path, "rb")) for path in paths]
            # Single lines of a compressed file are slow to read: buffers take a third off the time of ijcnn1.
            read = load_svmlight_files([io.BufferedReader(file, 1 << 20) for file in files], dtype=np.float32)
    except Exception as error:  # the decompressors have errors of their own
        raise DataError(
            f"{names} can't be read as svmlight text: {error}. Lines read `label index:value ...` with growing "
            "indices. A compressed file that ends too early is incomplete."
        ) from error
    tables = [np.column_stack([x.toarray(), y.astype(np.float32)]) for x, y in zip(read[::2], read[1::2], strict=True)]
    if not all(np.isfinite(table).all() for table in tables):
        raise DataError(f"{names}: values that are not finite. Remove those rows, or fill them in.")
    return tables
