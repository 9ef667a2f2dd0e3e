"""Pictures that arrive in the event file."""

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn

from lightning_tpauc import PosNegDataModule, ROCFigure, TPAUCModule
from lightning_tpauc.algorithms import CrossEntropy
from lightning_tpauc.errors import ArgumentError
from tests.fixed import make_trainer

pytest.importorskip("matplotlib").use("Agg")
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers.*", "ignore:.*smaller than the logging interval.*"
)


def fit(logger, callback, epochs=4, val_rows=slice(None)):
    x = torch.randn(60, 3)
    y = (torch.arange(60) % 3 == 0).long()
    data = PosNegDataModule((x, y), val_dataset=(x[val_rows], y[val_rows]), num_pos=10, num_neg=10)
    trainer = make_trainer(precision="32-true", max_epochs=epochs, logger=logger, callbacks=[callback])
    trainer.fit(TPAUCModule(nn.Linear(3, 1), CrossEntropy()), data)


def pictures(logger):
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    events = EventAccumulator(logger.log_dir)
    events.Reload()
    return {tag: events.Images(tag) for tag in events.Tags()["images"]}


@pytest.mark.parametrize(("every", "count"), [(1, 4), (3, 1)])
def test_a_picture_for_every_nth_validation(tmp_path, every, count):
    from matplotlib import pyplot

    logger = TensorBoardLogger(tmp_path)
    fit(logger, ROCFigure(every))
    (found,) = pictures(logger).values()
    assert len(found) == count
    assert found[0].step == 3 * every - 1, "60 examples by 20 are 3 steps an epoch; TensorBoard counts them from 0"
    assert found[0].encoded_image_string.startswith(b"\x89PNG")
    assert pyplot.get_fignums() == []


def test_a_missing_class_and_another_logger_give_no_picture(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    with pytest.warns(match="no positive example"):
        fit(logger, ROCFigure(), epochs=1, val_rows=slice(1, 2))
    assert pictures(logger) == {}
    fit(CSVLogger(tmp_path / "csv"), ROCFigure(), epochs=1)


def test_bad_argument():
    with pytest.raises(ArgumentError, match="`every_n_validations` to be at least 1, but got 0"):
        ROCFigure(0)
