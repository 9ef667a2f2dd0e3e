"""What the data modules of known data share, where their files come from, and the digits, which need none."""

import os
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.hub import download_url_to_file
from torch.utils.data import TensorDataset

from lightning_tpauc.data.datamodule import PosNegDataModule
from lightning_tpauc.data.examples import Datasets
from lightning_tpauc.data.splits import holdout
from lightning_tpauc.errors import ArgumentError, DataError
from lightning_tpauc.functional.checks import check_choice, require_range

_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary"
_DEEPCHEM = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets"


#: The files that :func:`require_file` can fetch: address, and 64 hex digits of the sha256 where one is published.
SOURCES: dict[str, tuple[str, str | None]] = {
    "ijcnn1.bz2": (f"{_LIBSVM}/ijcnn1.bz2", "b38a4198ce142d43e96fb86d17b87211feec1f909ac344fa057455c69de29de3"),
    "ijcnn1.t.bz2": (f"{_LIBSVM}/ijcnn1.t.bz2", "acd1db430684fdd3f0c768ecc49aa8e749d0004fc117611220c2aa576a7b6a24"),
    "HIGGS.xz": (f"{_LIBSVM}/HIGGS.xz", None),
    "SUSY.xz": (f"{_LIBSVM}/SUSY.xz", None),
    "tox21.csv.gz": (f"{_DEEPCHEM}/tox21.csv.gz", "48b34e4e59a2bae6f95734cd206c1869ab355f50a5e50bb7371a21f861d5e297"),
    "muv.csv.gz": (f"{_DEEPCHEM}/muv.csv.gz", "93c8b4a37c5996c76e57d5f3f065fb8b7cf1c19067011eff2293fd2a94ce274a"),
}


def require_file(path: Path, *, download: bool = False) -> None:
    """Make sure that a file or folder is there; one of :data:`SOURCES` is downloaded if that is asked for.

    A download appears under its name when it is complete and its hash is right. An existing file is not checked.
    """
    if path.exists():
        return
    if not download or path.name not in SOURCES:
        raise DataError(
            f"{path} does not exist. Set `root` (`--data.root DIR`) to the folder that holds it, or `--data.download "
            "true` to fetch a set with a known source."
        )
    url, sha256 = SOURCES[path.name]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        download_url_to_file(url, str(path), hash_prefix=sha256, progress=True)
    except (OSError, HTTPException, RuntimeError) as error:  # RuntimeError: the hash is another one
        raise DataError(
            f"{path} could not be downloaded: {error}. Try again, or fetch {url} yourself and save it there."
        ) from error


def default_cache_dir() -> Path:
    """Folder of parsed data: ``lightning_tpauc`` in ``$XDG_CACHE_HOME``, or in ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lightning_tpauc"


class SourceDataModule(PosNegDataModule):
    """Base of data modules that read their own data sets; subclasses define :meth:`load`.

    Args:
        **kwargs: arguments of :class:`~lightning_tpauc.PosNegDataModule`, without its data sets.
    """

    def __init__(self, **kwargs: Any) -> None:
        # Given, so that the command line does not offer data sets as arguments.
        super().__init__(None, None, None, None, negatives=None, calibration_dataset=None, **kwargs)
        self._loaded: Datasets | None = None

    def load(self) -> Datasets:
        """Read training, validation and test set."""
        raise NotImplementedError

    def build_datasets(self, stage: str | None) -> Datasets:  # noqa: ARG002  # the parts share their files
        """Read at the first call; predictions are made on the test part."""
        if self._loaded is None:
            loaded = self.load()
            self._loaded = loaded._replace(predict=loaded.test)
        return self._loaded


class GivenSplitDataModule(SourceDataModule):
    """Base of data modules of a data set with a fixed split.

    Args:
        train_with_val: whether to join the validation part to the training part. ``val_fraction`` or ``num_folds`` can
            then split off validation rows (cross-validation, as in the paper).
        **kwargs: arguments of :class:`~lightning_tpauc.PosNegDataModule`, without its data sets.

    Raises:
        ArgumentError: if there is a validation part, and ``val_fraction`` or ``num_folds`` asks for another.
    """

    def __init__(self, *, train_with_val: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.train_with_val = train_with_val
        if not train_with_val and (self.val_fraction is not None or self.num_folds is not None):
            raise ArgumentError(
                "The data set has a validation part already. Set `train_with_val=True` to join it to the training part "
                "and split both, or leave `val_fraction` and `num_folds` out."
            )


class DigitsDataModule(SourceDataModule):
    """One digit against the nine others: 1,797 images of 8 x 8 pixels, about a tenth of them positive.

    Images are flattened to float32 vectors of length 64 in [0, 1].

    Args:
        positive_digit: the positive class, 0 to 9.
        test_fraction: share of the test set, in (0, 1). The split is stratified and the same for every seed.
        **kwargs: arguments of :class:`~lightning_tpauc.PosNegDataModule`, without its data sets.

    Raises:
        ArgumentError: if an argument is out of range.

    Example:
        >>> datamodule = DigitsDataModule(val_fraction=0.2)
        >>> datamodule.setup()
        >>> datamodule.num_positives, datamodule.num_negatives
        (104, 973)
    """

    def __init__(self, positive_digit: int = 8, test_fraction: float = 0.25, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice(positive_digit, "positive_digit", range(10))
        self.positive_digit = positive_digit
        self.test_fraction = require_range("test_fraction", test_fraction, 0.0, 1.0, open_low=True, open_high=True)

    def load(self) -> Datasets:
        """The digits, split in two."""
        from sklearn.datasets import load_digits

        images, digits = load_digits(return_X_y=True)
        x = torch.from_numpy((images / 16.0).astype(np.float32))
        y = torch.from_numpy((digits == self.positive_digit).astype(np.int64))
        rows = holdout(y.numpy().astype(np.int8), self.test_fraction, seed=0)
        train, test = (TensorDataset(x[part], y[part]) for part in rows)
        return Datasets(train=train, test=test)
