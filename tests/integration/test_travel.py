"""Threshold, probabilities and names of labels go where the weights go."""

import json

import pytest
import torch
from torch import nn

from lightning_tpauc import DecisionThreshold, PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.scoring.thresholds import OperatingPoint
from tests.helpers.problems import bare_trainer

pytestmark = pytest.mark.filterwarnings("ignore")


def data(labels=1):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=generator)
    y = (x[:, :labels] + 0.5 * torch.randn(300, labels, generator=generator) > 0.8).long()
    targets = None if labels == 1 else ["liver", "lung"]
    return PosNegDataModule((x, y if labels > 1 else y[:, 0]), val_fraction=0.4, num_pos=8, num_neg=16, targets=targets)


def table(labels=2):
    pandas = pytest.importorskip("pandas")
    x, y = data(labels).train_dataset
    frame = pandas.DataFrame(x.numpy(), columns=list("abcd"))
    frame["liver"], frame["lung"] = y[:, 0].numpy(), y[:, 1].numpy()
    return PosNegDataModule(frame, targets=["liver", "lung"], val_fraction=0.4, num_pos=8, num_neg=16)


def network(labels=1):
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, labels))


def trained(kind=TPAUCModule, labels=1, **kwargs):
    torch.manual_seed(0)
    module = kind(**kwargs) if kind is not TPAUCModule else kind(network(labels), STACO(0.6, 0.3))
    choose = DecisionThreshold("f1", calibration="sigmoid", min_precision=0.3)
    bare_trainer(max_epochs=2, callbacks=[choose]).fit(module, data() if labels == 1 else table())
    assert module.operating_point is not None
    return module


def assert_same(found, module):
    assert found.operating_point == module.operating_point
    assert repr(found.operating_point) == repr(module.operating_point)
    assert found.trained_labels == module.trained_labels
    x = torch.randn(20, 4)
    with torch.no_grad():
        scores = found.eval().raw_scores(x)
        assert torch.equal(scores, module.eval().raw_scores(x))
    decided = [each.operating_point.decide(scores) for each in (found, module)]
    assert all(torch.equal(decided[0][name], decided[1][name]) for name in ("decision", "probability"))


@pytest.mark.parametrize("labels", [1, 2])
def test_state_dict(labels, tmp_path):
    module = trained(labels=labels)
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    fresh = TPAUCModule(network(labels))
    fresh.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert_same(fresh, module)
    if labels == 2:
        assert fresh.trained_labels.names == ("liver", "lung")
    assert fresh.algorithm.min_tpr == 0.6, "a rectangle that nobody chose is that of the weights"

    class Holder(nn.Module):
        def __init__(self, part):
            super().__init__()
            self.part = part

    inner = Holder(TPAUCModule(network(labels)))
    inner.load_state_dict(Holder(module).state_dict())
    assert_same(inner.part, module)
    other = TPAUCModule(network(labels), STACO(0.9, 0.1))
    other.load_state_dict(module.state_dict())
    assert other.threshold is None, "which is of another rectangle"


def test_hub_mixin(tmp_path):
    hub = pytest.importorskip("huggingface_hub")

    class Shared(TPAUCModule, hub.PyTorchModelHubMixin):
        def __init__(self, hidden: int = 8):
            super().__init__(nn.Sequential(nn.Linear(4, hidden), nn.ReLU(), nn.Linear(hidden, 1)), STACO(0.6, 0.3))

    module = trained(Shared, hidden=5)
    module.save_pretrained(tmp_path)
    assert_same(Shared.from_pretrained(tmp_path), module)


def test_checkpoints_have_it_once_and_in_plain_words(tmp_path):
    module = trained()
    module.trainer.save_checkpoint(tmp_path / "run.ckpt")
    content = torch.load(tmp_path / "run.ckpt", weights_only=True)
    assert set(content["state_dict"]) == {f"backbone.{name}" for name in module.backbone.state_dict()}
    assert_same(TPAUCModule.load_from_checkpoint(tmp_path / "run.ckpt", backbone=network()), module)
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    bare_trainer(max_epochs=1).fit(TPAUCModule(network(), init_from=str(tmp_path / "weights.pt")), data())


def decided_by(text, scores):
    """Without this package."""
    return (scores.double() >= json.loads(text)["threshold"]).long()


def test_exported_graphs_hold_it_in_their_metadata(tmp_path):
    module, x = trained().eval(), torch.randn(50, 4)
    with torch.no_grad():
        scores = module.raw_scores(x)
    expected = module.operating_point.decide(scores)["decision"]
    exported = torch.export.export(module, (torch.zeros(2, 4),), dynamic_shapes=({0: torch.export.Dim("rows")},))
    torch.export.save(exported, tmp_path / "m.pt2", extra_files={"threshold.json": module.operating_point.to_json()})
    files = {"threshold.json": ""}
    again = torch.export.load(tmp_path / "m.pt2", extra_files=files).module()
    torch.testing.assert_close(again(x).squeeze(1), scores)
    assert torch.equal(decided_by(files["threshold.json"], again(x).squeeze(1)), expected)
    assert OperatingPoint.from_dict(json.loads(files["threshold.json"])) == module.operating_point


@pytest.mark.slow
def test_onnx_holds_it_in_its_metadata(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    module, x = trained().eval(), torch.randn(50, 4)
    rows = torch.export.Dim("rows")
    program = torch.onnx.export(module, (torch.zeros(2, 4),), dynamo=True, dynamic_shapes=({0: rows},), verbose=False)
    program.model.metadata_props["threshold"] = module.operating_point.to_json()
    program.save(tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    (found,) = ReferenceEvaluator(model).run(None, {model.graph.input[0].name: x.numpy()})
    (text,) = [entry.value for entry in model.metadata_props if entry.key == "threshold"]
    with torch.no_grad():
        scores = module.raw_scores(x)
    torch.testing.assert_close(torch.from_numpy(found).squeeze(1), scores, rtol=1e-4, atol=1e-5)
    assert torch.equal(
        decided_by(text, torch.from_numpy(found)[:, 0]), module.operating_point.decide(scores)["decision"]
    )
