"""Pictures that arrive in the event file, and at the other loggers."""

import sys
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CometLogger, CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from torch import nn

from lightning_tpauc import PosNegDataModule, ROCFigure, TPAUCModule
from lightning_tpauc.algorithms import CrossEntropy
from lightning_tpauc.errors import TPAUCWarning
from lightning_tpauc.metrics.figures import SHOW
from tests.helpers.problems import make_trainer

pytest.importorskip("matplotlib").use("Agg")
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers.*", "ignore:.*smaller than the logging interval.*"
)


@pytest.fixture(autouse=True)
def _no_figures_of_others():
    """Pages of the documentation, run in the process of the tests, leave theirs open."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.close("all")


def fit(logger, callback, epochs=4, val_rows=slice(None)):
    x = torch.randn(60, 3)
    y = (torch.arange(60) % 3 == 0).long()
    data = PosNegDataModule((x, y), val_dataset=(x[val_rows], y[val_rows]), num_pos=10, num_neg=10)
    callbacks = callback if isinstance(callback, list) else [callback]
    trainer = make_trainer(precision="32-true", max_epochs=epochs, logger=logger, callbacks=callbacks)
    trainer.fit(TPAUCModule(nn.Linear(3, 1), CrossEntropy()), data)


def pictures(logger):
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    events = EventAccumulator(logger.log_dir)
    events.Reload()
    return {tag: events.Images(tag) for tag in events.Tags()["images"]}


@pytest.mark.slow
@pytest.mark.parametrize(("every", "count"), [(1, 4), (3, 1)])
def test_a_picture_for_every_nth_validation(tmp_path, every, count):
    from matplotlib import pyplot

    logger = TensorBoardLogger(tmp_path)
    fit(logger, ROCFigure(every))
    by_name = pictures(logger)
    assert set(by_name) == {"val/roc", "val/scores"}
    found = by_name["val/roc"]
    assert [image.step for image in by_name["val/scores"]] == [image.step for image in found]
    assert len(found) == count
    assert found[0].step == 3 * every - 1, "60 examples by 20 are 3 steps an epoch; TensorBoard counts them from 0"
    assert found[0].encoded_image_string.startswith(b"\x89PNG")
    assert pyplot.get_fignums() == []


def test_the_pictures_show_the_point_and_the_threshold_of_their_validation(monkeypatch):
    seen = []
    monkeypatch.setitem(SHOW, "Standing", lambda logger, name, figure, step: seen.append((name, inspect(figure))))

    def inspect(figure):
        (ax,) = figure.axes
        return {line.get_label(): [float(v) for v in (line.get_xdata()[0], line.get_ydata()[0])] for line in ax.lines}

    class Watch(Callback):
        def __init__(self):
            self.points = []

        def on_validation_end(self, trainer, pl_module):
            if not trainer.sanity_checking:
                self.points.append(pl_module.operating_point.decisions)

    watch = Watch()
    fit(Standing(), [ROCFigure(), watch], epochs=3)
    assert len(watch.points) == 3
    for k, decisions in enumerate(watch.points):
        (roc, lines), (scores, marks) = seen[2 * k : 2 * k + 2]
        assert (roc, scores) == ("val/roc", "val/scores")
        (label,) = (name for name in lines if name.startswith("decisions"))
        assert lines[label] == pytest.approx([1 - decisions.specificity, decisions.sensitivity])
        assert marks["threshold"][0] == decisions.threshold


def test_a_missing_class_gives_no_picture(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    with pytest.warns(match="no positive example"):
        fit(logger, ROCFigure(), epochs=1, val_rows=slice(1, 2))
    assert pictures(logger) == {}


class Standing(Logger):
    """Stands in for a logger whose service is not installed; what a test does not look at is let through."""

    name, version, save_dir = "stand-in", 0, None

    def __init__(self):
        self.seen = []

    def log_metrics(self, metrics, step=None):
        self.seen.append((metrics, step))

    def log_hyperparams(self, *args, **kwargs):
        pass


def stand_in(kind, **attributes):
    """Of the same name, by which loggers are known; none of their packages has to be installed for that."""
    return type(kind.__name__, (Standing,), attributes)()


def test_every_logger_is_known_by_the_name_that_it_has():
    assert set(SHOW) == {kind.__name__ for kind in (TensorBoardLogger, WandbLogger, MLFlowLogger, CometLogger)}


def test_weights_and_biases_shows_an_image(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(Image=lambda figure: ("image", type(figure).__name__)))

    logger = stand_in(WandbLogger, log_image=WandbLogger.log_image)
    fit(logger, ROCFigure(2))
    assert [entry for entry in logger.seen if "val/roc" in entry[0]] == [
        ({"val/roc": [("image", "Figure")]}, step) for step in (5, 11)
    ]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            MLFlowLogger,
            [(("run", "Figure", f"val/{k}/step_{s:08d}.png"), {}) for s in (5, 11) for k in ("roc", "scores")],
        ),
        (CometLogger, [((f"val/{kind}", "Figure"), {"step": step}) for step in (5, 11) for kind in ("roc", "scores")]),
    ],
)
def test_loggers_whose_experiment_takes_a_figure(kind, expected, tmp_cwd):
    from matplotlib import pyplot

    class Experiment:
        def __init__(self):
            self.figures = []

        def log_figure(self, *args, **kwargs):
            assert pyplot.get_fignums() != []
            self.figures.append((tuple(arg if isinstance(arg, str) else type(arg).__name__ for arg in args), kwargs))

    logger = stand_in(kind, run_id="run", experiment=Experiment())
    fit([CSVLogger("logs"), logger], ROCFigure(2))
    assert logger.experiment.figures == expected
    assert pyplot.get_fignums() == []


@pytest.mark.parametrize(("loggers", "names"), [(False, "no logger"), ([CSVLogger, Standing], "CSVLogger, Standing")])
def test_a_run_whose_loggers_show_no_figures_says_so_once(tmp_cwd, loggers, names):
    made = [kind() if kind is Standing else kind("logs") for kind in loggers] if loggers else False
    with pytest.warns(TPAUCWarning, match=f"draws nothing: {names} can't show figures. Use one of TensorB") as caught:
        fit(made, ROCFigure(), epochs=2)
    assert sum("ROCFigure" in str(warning.message) for warning in caught) == 1
