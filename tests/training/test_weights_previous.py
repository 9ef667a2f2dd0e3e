"""Methods that see every batch under two sets of weights, and AUCM with its last iterate, through the Trainer."""

import pytest
import torch
from torch import nn

from lightning_tpauc import TPAUCModule
from lightning_tpauc.algorithms.aucm import AUCM
from lightning_tpauc.algorithms.baselines import CrossEntropy
from lightning_tpauc.algorithms.pauci import PAUCI
from lightning_tpauc.algorithms.sonx import SONX
from lightning_tpauc.algorithms.sota import SOTA, SOTAs
from lightning_tpauc.functional.tpauc import two_way_partial_auroc
from tests.helpers.problems import (
    DIM,
    NUM_POS,
    LinearScore,
    eval_loader,
    loader,
    make_batches,
    make_data,
    make_trainer,
    paper_sonx,
    paper_stages,
)
from tests.helpers.ranks import fit as fit_ranks
from tests.helpers.tolerances import assert_close
from tests.reference import aucm, pauci, sonx

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers.*",
    "ignore:.*`val_dataloader`.*",
    "ignore:.*Checkpoint directory.*",
    "ignore:.* is made for scores in",
)

STEPS = 40


def sgd(lr, **kwargs):
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, **kwargs)


def fit(algorithm, optimizer, batches, net=None, callbacks=(), val=None, trainer=None, **kwargs):
    module = TPAUCModule(net or LinearScore(), algorithm, optimizer, num_positives=NUM_POS, warmup=0, **kwargs)
    make_trainer(callbacks=list(callbacks), **(trainer or {})).fit(module, loader(batches), val)
    return module


@pytest.mark.parametrize("gamma", [0.0, 0.1])
def test_sonx_equals_its_loop(gamma):
    batches, parts = make_batches(STEPS)
    settings = {"tau": 0.6, "gamma": gamma, "beta": 0.8, "beta_prime": 0.05}
    module = fit(paper_sonx(0.4, 0.7, **settings), sgd(0.1), batches)
    start = [0.0] * DIM
    expected = sonx.Reference(start, NUM_POS, 0.1, **settings, theta0=0.6, theta1=0.7, start=0.0, name="squared_hinge")
    for pos, neg, _, index in parts:
        expected.step(pos.tolist(), neg.tolist(), index.tolist())
    assert_close(module.backbone.weight.detach(), expected.w, "trajectory64")
    assert_close(module.algorithm.s, expected.s, "trajectory64")
    assert_close(module.algorithm.s_prime, expected.s_prime, "trajectory64")


def test_pauci_equals_its_formula():
    batches, parts = make_batches(STEPS)
    settings = {"nu": 0.3, "rho": 0.2, "k": 1.0, "m": 10.0, "c1": 1.0, "c2": 0.5, "kappa": 2.0}
    module = fit(PAUCI(0.4, 0.7, **settings), sgd(0.3), batches, score_activation="sigmoid")
    expected = pauci.Reference([0.0] * DIM, 0.6, 0.7, **settings)
    for pos, neg, _, _ in parts:
        expected.step(pos, neg)
    assert_close(module.backbone.weight.detach(), expected.x["w"], "trajectory64")
    assert_close(module.training_state.previous.weights[0], expected.x_old["w"], "trajectory64")
    assert_close(module.training_state.previous.estimates[0], expected.v["w"], "trajectory64")
    assert_close(module.algorithm.variables[6], expected.x["g"], "trajectory64")


def noisy_net():
    torch.manual_seed(0)
    layers = [nn.Linear(DIM, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 1)]
    return nn.Sequential(*layers).double()


@pytest.mark.parametrize("method", [SONX, PAUCI])
def test_both_passes_share_dropout_masks(method):
    class Spy(method):
        pairs = ()

        def step(self, pos_scores, neg_scores, dual_neg_scores, index, previous=None):
            if previous is not None:
                Spy.pairs += ((torch.cat([pos_scores, neg_scores]).detach(), torch.cat(previous)),)
            return super().step(pos_scores, neg_scores, dual_neg_scores, index, previous)

    # With learning rate 0 both sets of weights are the same: only other masks could make a difference.
    fit(Spy(gamma=0.1) if method is SONX else Spy(), sgd(0.0), make_batches(5)[0], net=noisy_net())
    assert len(Spy.pairs) == 4
    for current, previous in Spy.pairs:
        assert torch.equal(current, previous)
    assert not torch.equal(Spy.pairs[0][0], Spy.pairs[1][0])


def test_second_pass_leaves_running_statistics_and_random_numbers_alone():
    batches, _ = make_batches(6)

    def statistics(gamma):
        torch.manual_seed(1)
        module = fit(SONX(gamma=gamma, tau=1.0), sgd(0.0), batches, net=noisy_net())
        return [b.clone() for b in module.buffers()], torch.rand(3)

    once, twice = statistics(0.0), statistics(1e-3)
    for a, b in zip(once[0], twice[0], strict=True):
        assert torch.equal(a, b)
    assert torch.equal(once[1], twice[1])
    assert int(once[0][2]) == 6  # num_batches_tracked


@pytest.mark.ddp
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning", "ignore:.*every step takes all of them.*")
@pytest.mark.parametrize(
    "algorithm",
    [
        lambda: SONX(gamma=0.1),
        PAUCI,
        lambda: AUCM(gamma=5.0),
        lambda: SOTA(gamma=5.0),
        lambda: SOTAs(lam=0.5, lam_prime=2.0),
        CrossEntropy,
    ],
    ids=["SONX", "PAUCI", "AUCM", "SOTA", "SOTAs", "CrossEntropy"],
)
def test_two_processes_reproduce_one(tmp_path, algorithm):
    (single,) = fit_ranks(tmp_path, 1, algorithm=algorithm(), max_steps=20, stage=8)
    for other in fit_ranks(tmp_path, 2, algorithm=algorithm(), max_steps=20, stage=8):
        assert_close(other["losses"], single["losses"], "trajectory64")
        for part in ("state", "weights"):
            for name, value in single[part].items():
                assert_close(other[part][name], value, "trajectory64")


def test_aucm_goes_on_from_the_last_iterate_and_evaluates_it():
    batches, parts = make_batches(30)
    algorithm = AUCM(eta=0.05, gamma=5.0, momentum=0.9)
    module = fit(
        algorithm, sgd(0.05, momentum=0.9), batches, callbacks=[paper_stages(every_n_steps=12)], val=eval_loader()
    )
    expected = aucm.Reference([0.0] * DIM, 0.05, 0.5, 0.2, 0.9, 0.0)
    for t, (pos, neg, _, _) in enumerate(parts):
        if t in (12, 24):
            expected.finish_stage()
        expected.step(pos.tolist(), neg.tolist())
    assert module.training_state.average.stage == 2
    assert_close(module.backbone.weight.detach(), expected.v[:-2], "trajectory64")
    assert_close(module.algorithm.centres, expected.v[-2:], "trajectory64")
    assert_close(module.training_state.average.anchor[0], expected.v_ref[:-2], "trajectory64")
    w = torch.tensor(expected.v[:-2], dtype=torch.float64)
    pos, neg = make_data()
    target = torch.cat([torch.ones(len(pos)), torch.zeros(len(neg))]).long()
    value = two_way_partial_auroc(torch.cat([pos, neg]) @ w, target, 0.5, 0.5)
    assert_close(module.trainer.callback_metrics["val/tpauc"], value, "float32")
