"""What is left in the module after a training in processes of its own, beside one in the test's process."""

import pytest
import torch
from torch import nn

from lightning_tpauc import DecisionThreshold, PosNegDataModule, TPAUCModule
from tests.helpers.problems import make_trainer
from tests.helpers.tolerances import assert_close

pytestmark = [
    pytest.mark.ddp,
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*use of fork.*:DeprecationWarning"),
]


def make_data(num_pos, num_neg):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(160, 5, generator=generator, dtype=torch.float64)
    y = torch.rand(160, generator=generator) < 0.3
    x[y] += 0.6
    return PosNegDataModule((x, y.long()), val_fraction=0.4, num_pos=num_pos, num_neg=num_neg)


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))  # float32, until it is trained


def train(module, **options):
    world = options["devices"]
    choose = DecisionThreshold("youden", calibration="isotonic")
    trainer = make_trainer(max_epochs=3, callbacks=[choose], **options)
    trainer.fit(module, make_data(12 // world, 24 // world))


@pytest.fixture(scope="module")
def at_home():
    module = TPAUCModule(make_net())
    train(module, devices=1)
    return module


@pytest.fixture(
    scope="module",
    params=["ddp_fork", pytest.param("ddp_spawn", marks=pytest.mark.slow)],
)
def away(request):
    module = TPAUCModule(make_net())
    train(module, devices=2, strategy=request.param)
    return module


def test_threshold_and_calibration_come_back(at_home, away):
    expected, actual = at_home.operating_point, away.operating_point
    assert actual.decisions[1:] == expected.decisions[1:]
    assert away.threshold == pytest.approx(at_home.threshold, rel=1e-9)
    assert (actual.step, actual.criterion) == (expected.step, "youden")
    scores = torch.linspace(-2, 2, 9, dtype=torch.float64)
    assert_close(actual.decide(scores)["probability"], expected.decide(scores)["probability"], "trajectory64")
    assert 0.05 < float(actual.decide(scores)["probability"].mean()) < 0.95


def test_weights_come_back_in_the_precision_that_they_were_trained_in(at_home, away):
    expected, actual = at_home.backbone.state_dict(), away.backbone.state_dict()
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype
        assert_close(actual[name], value, "trajectory64")
    assert away.dtype == torch.float64


def test_what_training_remembers_comes_back(at_home, away):
    assert (away.training_state.batches_seen, away.training_state.best.step) == (
        at_home.training_state.batches_seen,
        at_home.training_state.best.step,
    )
    assert away.training_state.batches_seen > 0
    assert away.training_state.best.value == pytest.approx(at_home.training_state.best.value, rel=1e-9)
    assert_close(away.training_state.step_loss, at_home.training_state.step_loss, "trajectory64")


def test_a_checkpoint_of_the_module_holds_the_threshold(tmp_path, away):
    trainer = make_trainer(devices=1)
    trainer.validate(away, make_data(12, 24), verbose=False)
    trainer.save_checkpoint(tmp_path / "after.ckpt", weights_only=True)
    loaded = TPAUCModule.load_from_checkpoint(tmp_path / "after.ckpt", backbone=make_net())
    assert loaded.threshold == away.threshold


def test_a_second_training_goes_on_as_after_one_in_the_same_process():
    results = []
    for options in ({"devices": 1}, {"devices": 2, "strategy": "ddp_fork"}):
        module = TPAUCModule(make_net())
        train(module, **options)
        train(module, devices=1)
        results.append(module)
    assert results[0].training_state.batches_seen == results[1].training_state.batches_seen
    for name, value in results[0].backbone.state_dict().items():
        assert_close(results[1].backbone.state_dict()[name], value, "trajectory64")
