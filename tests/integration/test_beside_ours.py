"""What a module keeps beside the training of ours: metrics, losses, frozen layers, rates by layer."""

import pytest
import torch
from sklearn.metrics import f1_score
from torch import nn
from torch.nn.functional import softplus
from torchmetrics.classification import BinaryAUROC, BinaryF1Score

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import PAUCI, STACO, CrossEntropy
from lightning_tpauc.errors import ArgumentError, UnsupportedError
from lightning_tpauc.metrics import TPRAtMaxFPR
from tests.helpers.problems import make_trainer

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*use of fork.*")


def problem():
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(90, 3, generator=generator)
    return x, (x[:, 0] + torch.randn(90, generator=generator) > 0.7).long()


def make_data():
    x, y = problem()
    return PosNegDataModule((x, y), (x, y), test_dataset=(x, y), num_pos=8, num_neg=16, batch_size=13)


def make_net():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def fit(module, **kwargs):
    trainer = make_trainer(**{"precision": "32-true", "max_epochs": 2, **kwargs})
    trainer.fit(module, make_data())
    return trainer


@pytest.mark.parametrize("scale", [1.0, 0.01], ids=["scores of any size", "some batches inside of [0, 1]"])
@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.ddp)])
def test_torchmetrics_see_every_example_once_as_probabilities(scale, devices):
    metrics = {"f1": BinaryF1Score(), "their_auroc": BinaryAUROC(), "tpr_at_1": TPRAtMaxFPR(0.1)}
    net = make_net()
    with torch.no_grad():
        net[2].weight.mul_(scale)
    module = TPAUCModule(net, metrics=metrics)
    trainer = make_trainer(precision="32-true", devices=devices, strategy="ddp_fork" if devices > 1 else "auto")
    trainer.test(module, make_data(), verbose=False)
    found = trainer.callback_metrics
    x, y = problem()
    with torch.no_grad():
        scores = net(x).squeeze(1)
    assert float(found["test/f1"]) == pytest.approx(float(BinaryF1Score()(scores.double().sigmoid(), y)))
    assert float(found["test/their_auroc"]) == pytest.approx(float(found["test/auroc"]), rel=1e-6)
    assert float(found["test/tpr_at_1"]) == pytest.approx(float(TPRAtMaxFPR(0.1)(scores, y)))


def test_they_are_logged_in_validation_and_begin_anew_each_time():
    module = TPAUCModule(make_net(), metrics=[BinaryF1Score()])
    trainer = fit(module)
    (values,) = trainer.validate(module, make_data(), verbose=False)
    x, y = problem()
    with torch.no_grad():
        decided = module.raw_scores(x).double() >= module.threshold
    assert values["val/BinaryF1Score"] == pytest.approx(f1_score(y, decided))


def test_a_metric_under_a_name_of_ours_is_refused():
    with pytest.raises(ArgumentError, match="`metrics` has 'tpauc', a name of ours"):
        TPAUCModule(make_net(), metrics={"tpauc": BinaryF1Score()})


class WithLoss(TPAUCModule):
    weight = 0.5

    def auxiliary_loss(self, batch, scores):
        pos, neg = softplus(-scores.pos_scores), softplus(scores.neg_scores)
        return self.weight * (pos.sum() + neg.sum()) / (pos.numel() + neg.numel())


def test_the_gradient_is_that_of_the_sum():
    """Cross-entropy of weight 1 plus itself of weight w is cross-entropy at (1 + w) times the rate."""

    def weights(module):
        fit(module)
        return [p.detach().clone() for p in module.parameters()]

    def one(scale):
        return lambda p: torch.optim.SGD(p, lr=0.1 * scale)

    both = weights(WithLoss(make_net(), CrossEntropy(), one(1.0), warmup=0.0))
    alone = weights(TPAUCModule(make_net(), CrossEntropy(), one(1.5), warmup=0.0))
    for a, b in zip(both, alone, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.ddp
def test_the_sum_is_the_same_over_two_processes():
    found = []
    for devices in (1, 2):
        module = WithLoss(make_net(), STACO(), sgd)
        x, y = problem()
        data = PosNegDataModule((x, y), num_pos=8 // devices, num_neg=16 // devices)
        strategy = "ddp_fork" if devices > 1 else "auto"
        make_trainer(precision="32-true", max_epochs=2, devices=devices, strategy=strategy).fit(module, data)
        found.append([p.detach().clone() for p in module.parameters()])
    for one, two in zip(*found, strict=True):
        assert torch.allclose(one, two, rtol=1e-4, atol=1e-6)


def test_a_second_loss_that_is_refused():
    class Mine(TPAUCModule):
        def auxiliary_loss(self, batch, scores):
            return torch.zeros(())

    with pytest.raises(UnsupportedError, match="PAUCI can't have an `auxiliary_loss`"):
        fit(Mine(make_net(), PAUCI(), sgd, score_activation="sigmoid"))


def test_frozen_layers_stay_and_each_group_has_its_rate():
    net = make_net()
    net[0].requires_grad_(False)
    before = [p.detach().clone() for p in net.parameters()]
    fit(TPAUCModule(net, STACO(), sgd))
    after = list(net.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before[:2], after[:2], strict=True))
    assert not torch.equal(before[2], after[2])

    class ByLayer(TPAUCModule):
        def configure_optimizers(self):
            head, body = self.backbone[2].parameters(), self.backbone[0].parameters()
            return torch.optim.SGD([{"params": body, "lr": 0.0}, {"params": head, "lr": 0.1}])

    net = make_net()
    trainer = fit(ByLayer(net, STACO()))
    assert all(torch.equal(a, b) for a, b in zip(before[:2], list(net.parameters())[:2], strict=True))
    assert not torch.equal(before[2], net[2].weight)
    assert [group["lr"] for group in trainer.optimizers[0].param_groups] == [0.0, 0.1]
