"""Loggers get what a run was made with, also where no command line wrote it down."""

from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from tests.helpers.problems import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*")


def data():
    generator = torch.Generator().manual_seed(0)
    return PosNegDataModule((torch.randn(60, 4, generator=generator), torch.arange(60) % 3 == 0), num_pos=4, num_neg=6)


def fit(module, logger):
    trainer = make_trainer(logger=logger, max_steps=1, precision="32-true")
    trainer.fit(module, data())
    return trainer


def test_a_run_from_python_is_described(tmp_path):
    module = TPAUCModule(
        nn.Linear(4, 1),
        STACO(0.4, 0.6, alpha=2.0),
        lambda p: torch.optim.SGD(p, lr=0.25),
        lambda o: torch.optim.lr_scheduler.StepLR(o, 3),
        score_activation="sigmoid",
    )
    logger = CSVLogger(tmp_path)
    trainer = fit(module, logger)
    logged = yaml.safe_load(Path(logger.log_dir, "hparams.yaml").read_text())
    algorithm = {name: logged["algorithm"][name] for name in ("name", "min_tpr", "max_fpr", "alpha", "surrogate")}
    assert algorithm == {"name": "STACO", "min_tpr": 0.4, "max_fpr": 0.6, "alpha": 2.0, "surrogate": "hinge"}
    assert (logged["optimizer"]["name"], logged["optimizer"]["lr"]) == ("SGD", 0.25)
    assert (logged["sampler"]["num_pos"], logged["sampler"]["num_neg"]) == (4, 6)
    assert (logged["lr_scheduler"], logged["score_activation"]) == ("StepLR", "sigmoid")
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    assert not torch.load(tmp_path / "a.ckpt", weights_only=True).get("hyper_parameters")
