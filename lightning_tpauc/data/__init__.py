"""Data modules, samplers and batches; names are imported when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_tpauc.data.batch import EvalBatch, PosNegBatch
    from lightning_tpauc.data.datamodule import PosNegDataModule
    from lightning_tpauc.data.digits import DigitsDataModule
    from lightning_tpauc.data.examples import ArrayDataset, Datasets, RowsDataset
    from lightning_tpauc.data.libsvm import LIBSVMDataModule
    from lightning_tpauc.data.medmnist import MedMNISTDataModule
    from lightning_tpauc.data.molecules import OGBMoleculesDataModule, SMILESDataModule
    from lightning_tpauc.data.streaming import NegativeStream

__all__ = (
    "ArrayDataset",
    "Datasets",
    "DigitsDataModule",
    "EvalBatch",
    "LIBSVMDataModule",
    "MedMNISTDataModule",
    "NegativeStream",
    "OGBMoleculesDataModule",
    "PosNegBatch",
    "PosNegDataModule",
    "RowsDataset",
    "SMILESDataModule",
)

_HOME = {
    "ArrayDataset": "examples",
    "Datasets": "examples",
    "DigitsDataModule": "digits",
    "EvalBatch": "batch",
    "LIBSVMDataModule": "libsvm",
    "MedMNISTDataModule": "medmnist",
    "NegativeStream": "streaming",
    "OGBMoleculesDataModule": "molecules",
    "PosNegBatch": "batch",
    "PosNegDataModule": "datamodule",
    "RowsDataset": "examples",
    "SMILESDataModule": "molecules",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"lightning_tpauc.data.{_HOME[name]}"), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
