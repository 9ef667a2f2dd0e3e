"""Data modules, samplers and batches."""

from lightning_tpauc.data.batch import EvalBatch, PosNegBatch
from lightning_tpauc.data.datamodule import PosNegDataModule
from lightning_tpauc.data.examples import ArrayDataset, Datasets
from lightning_tpauc.data.labels import OneVsRest
from lightning_tpauc.data.libsvm import LIBSVMDataModule
from lightning_tpauc.data.medmnist import MedMNISTDataModule
from lightning_tpauc.data.molecules import OGBMoleculesDataModule, SMILESDataModule
from lightning_tpauc.data.source_files import DigitsDataModule
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
    "OneVsRest",
    "PosNegBatch",
    "PosNegDataModule",
    "SMILESDataModule",
)
