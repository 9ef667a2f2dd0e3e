"""What was trained leaves the package: as weights of the plain network, and traced."""

import pytest
import torch
from lightning.pytorch import seed_everything
from torch import nn

from lightning_tpauc import DigitsDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO
from tests.helpers.problems import bare_trainer

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))


def network():
    return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


@pytest.fixture(scope="module")
def trained():
    seed_everything(0, verbose=False)
    module = TPAUCModule(network(), STACO())
    bare_trainer(max_epochs=2).fit(module, DigitsDataModule(val_fraction=0.25, num_pos=32, num_neg=96))
    return module.eval()


def scores(module):
    with torch.no_grad():
        return module(ROWS)


def test_the_weights_of_a_checkpoint_fit_the_plain_network(trained, tmp_path):
    """Without this package: the names that `backbone.` is cut off from."""
    trained.trainer.save_checkpoint(tmp_path / "run.ckpt")
    state = torch.load(tmp_path / "run.ckpt", weights_only=True)["state_dict"]
    plain = network()
    plain.load_state_dict({name.removeprefix("backbone."): value for name, value in state.items()})
    assert torch.equal(scores(plain.eval()), scores(trained))


def test_scores_and_decisions_are_those_of_predict(trained, tmp_path):
    """By a traced network and the number that a checkpoint holds, without this package."""
    data = DigitsDataModule(val_fraction=0.25)
    trained.trainer.save_checkpoint(tmp_path / "run.ckpt")
    found = bare_trainer().predict(trained, data)
    threshold = torch.load(tmp_path / "run.ckpt", weights_only=True)["lightning_tpauc_operating_point"]["threshold"]
    assert threshold == trained.threshold
    torch.jit.trace(trained.backbone.eval(), torch.zeros(2, 64)).save(tmp_path / "model.ts")
    inputs = torch.cat([batch.inputs for batch in data.predict_dataloader()])
    with torch.no_grad():
        again = torch.jit.load(tmp_path / "model.ts")(inputs).squeeze(1)
    torch.testing.assert_close(again, torch.cat([batch["score"] for batch in found]), rtol=0, atol=1e-6)
    decisions = torch.cat([batch["decision"] for batch in found])
    assert torch.equal((again.double() >= threshold).long(), decisions)
    assert 0 < decisions.sum() < len(decisions)
