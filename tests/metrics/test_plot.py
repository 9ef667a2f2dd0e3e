import pytest
import torch

from lightning_tpauc.errors import TPAUCWarning
from lightning_tpauc.metrics import TwoWayPartialAUROC
from lightning_tpauc.metrics.figures import plot_scores

mpl = pytest.importorskip("matplotlib", reason="matplotlib is not installed")


@pytest.fixture(autouse=True)
def close_figures():
    mpl.use("Agg")
    yield
    mpl.pyplot.close("all")


def filled(**kwargs):
    metric = TwoWayPartialAUROC(0.5, 0.5, **kwargs)
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(2, (200,), generator=generator)
    metric.update(torch.randn(200, generator=generator) + 1.2 * target, target)
    return metric


def polygon_area(vertices):
    x, y = vertices[:, 0], vertices[:, 1]
    return abs(float((x * y.roll(-1) - y * x.roll(-1)).sum())) / 2


@pytest.mark.parametrize("thresholds", [None, [-1.0, 0.0, 1.0, 2.0]], ids=["exact", "binned"])
def test_the_filled_area_is_the_metric(thresholds):
    metric = filled(thresholds=thresholds)
    fig, ax = metric.plot()
    assert ax.figure is fig
    (fill,) = ax.collections
    (path,) = fill.get_paths()
    area = polygon_area(torch.as_tensor(path.vertices[:-1]))
    assert area / 0.25 == pytest.approx(float(metric.compute()), rel=1e-9)


def test_what_the_picture_shows():
    metric = filled()
    _, ax = metric.plot()
    curve = ax.lines[-1].get_xydata()
    assert torch.equal(torch.as_tensor(curve), torch.stack(metric.roc()[:2], dim=1))
    boxes = {patch.get_bbox().bounds for patch in ax.patches}
    assert boxes == {(0.0, 0.5, 0.5, 0.5)}
    texts = {text.get_text() for text in ax.get_legend().get_texts()}
    assert texts == {"ROC curve", "TPR ≥ 0.5, FPR ≤ 0.5", f"TPAUC = {float(metric.compute()):.3f}"}
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("False positive rate", "True positive rate")


def test_several_curves_are_compared():
    generator = torch.Generator().manual_seed(5)
    target = torch.randint(2, (100,), generator=generator)
    other = TwoWayPartialAUROC(0.5, 0.5)
    other.update(torch.randn(100, generator=generator) + 0.4 * target, target)
    metric = filled()
    _, ax = metric.plot(others={"cross-entropy": other}, label="STACO")
    curves = [torch.as_tensor(line.get_xydata()) for line in ax.lines[1:]]
    assert all(torch.equal(c, torch.stack(m.roc()[:2], dim=1)) for c, m in zip(curves, (metric, other), strict=True))
    named = {"STACO": metric, "cross-entropy": other}
    texts = {text.get_text() for text in ax.get_legend().get_texts()}
    values = {f"{name}: TPAUC = {float(each.compute()):.3f}" for name, each in named.items()}
    assert texts == {"TPR ≥ 0.5, FPR ≤ 0.5", *values}


def test_the_scores_of_both_classes_are_counted_apart():
    scores = torch.tensor([0.0, 1.0, 1.0, 2.0, float("inf"), 9.0])
    _, ax = plot_scores(scores, torch.tensor([0, 0, 1, 1, 1, -1]), threshold=1.5)
    drawn = [[float(bar.get_height()) for bar in bars if bar.get_height() > 0] for bars in ax.containers]
    assert drawn == [[0.5, 0.5], [0.5, 0.5]]
    assert {"2 negatives", "2 positives"} < {text.get_text() for text in ax.get_legend().get_texts()}
    assert [line.get_xdata()[0] for line in ax.lines] == [1.5]
    plot_scores(torch.zeros(3), torch.tensor([0, 1, 1]))  # all in one bin


def test_a_curve_past_the_rectangle_and_a_missing_class_are_drawn():
    low = TwoWayPartialAUROC(0.9, 0.1)
    low.update(torch.tensor([0.1, 0.9]), torch.tensor([1, 0]))
    low.plot()
    one_class = TwoWayPartialAUROC()
    one_class.update(torch.tensor([0.1, 0.9]), torch.tensor([1, 1]))
    with pytest.warns(TPAUCWarning, match="no negative"):
        fig, ax = one_class.plot()
    fig.canvas.draw()
    assert "TPAUC = nan" in {text.get_text() for text in ax.get_legend().get_texts()}
