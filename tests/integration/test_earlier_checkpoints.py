"""Checkpoints of the version without step units, shrinking rectangle, warm-up and best weights load and resume.

tests/fixtures holds one of STACO1 and one of STACO2 after 8 of 20 steps, written by that version, and beside its state,
under "straight", where that version came out after 20 steps.
"""

import math

import pytest
import torch

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from tests.helpers.paths import ROOT
from tests.helpers.problems import make_trainer, paper_staco, paper_stages, shifted
from tests.helpers.tolerances import assert_close

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers.*", "ignore::lightning_tpauc.errors.TPAUCAdvice"
)

KINDS = {"staco1": math.inf, "staco2": 4.0}
each_kind = pytest.mark.parametrize("kind", KINDS)


def path_of(kind):
    return str(ROOT / "tests" / "fixtures" / f"earlier_{kind}.pt")


def make_data():
    x, y = shifted(torch.arange(60) % 3 == 0, 4, 0.5, seed=5)
    return PosNegDataModule((x, y), val_dataset=(x, y), num_pos=4, num_neg=8)


def make_module(kind, **kwargs):
    torch.manual_seed(1)  # other weights than the checkpoint's
    algorithm = paper_staco(0.6, 0.4, gamma=KINDS[kind])
    return TPAUCModule(torch.nn.Linear(4, 1), algorithm, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), **kwargs)


def resume(kind, stages, **kwargs):
    module = make_module(kind, **kwargs)
    trainer = make_trainer(
        precision="32-true", max_steps=20, max_epochs=-1, num_sanity_val_steps=0, callbacks=[stages], logger=False
    )
    trainer.fit(module, make_data(), ckpt_path=path_of(kind))
    assert trainer.global_step == 20
    return module


@pytest.mark.slow
@each_kind
def test_the_paper_words_go_on_where_that_version_would_have(kind):
    module = resume(kind, paper_stages(every_n_steps=5), warmup=0)
    straight = torch.load(path_of(kind), weights_only=True)["straight"]
    for own, expected in zip(module.parameters(), straight["weights"], strict=True):
        assert_close(own.detach(), expected, "trajectory32")
    for name in ("s", "y", "s_prime"):
        assert_close(getattr(module.algorithm, name), straight[name], "trajectory32")


@each_kind
def test_a_warm_up_is_not_begun_amid_a_training_and_the_rectangle_stays(kind):
    """Whatever the defaults are now: the checkpoint was written at the full rate and in the rectangle itself."""
    plain = resume(kind, paper_stages(every_n_steps=5), warmup=0)
    module = resume(kind, StageCallback(every_n_steps=5, averaging="uniform", keep_best=False), warmup=0.5)
    assert module.algorithm.tightness == 1.0
    for own, expected in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(own, expected)


@each_kind
def test_all_defaults_of_now_go_on_from_it(kind):
    module = resume(kind, StageCallback(every_n_steps=5))
    assert module.best is not None
    assert module.best.step > 8
    assert all(torch.isfinite(p).all() for p in module.parameters())


@each_kind
def test_it_is_evaluated(kind):
    module = make_module(kind)
    results = make_trainer(precision="32-true").validate(module, make_data(), ckpt_path=path_of(kind), verbose=False)
    weights = torch.load(path_of(kind), weights_only=True)["state_dict"]
    assert torch.equal(module.backbone.weight, weights["backbone.weight"])
    assert 0.0 <= results[0]["val/tpauc"] <= 1.0


@each_kind
def test_the_unit_of_the_loss_begins_with_the_first_step(kind):
    """Its dual variables came from steps without a unit; from then on steps may be measured in it."""
    state = torch.load(path_of(kind), weights_only=True)["lightning_tpauc"]["algorithm"]["state"]
    algorithm = paper_staco(0.6, 0.4, gamma=KINDS[kind], step_units="loss", share_negatives=True)
    algorithm.setup(20)
    algorithm.load_state_dict(state)
    assert float(algorithm.loss_unit) == 0.0
    pos, neg = torch.randn(3, generator=torch.Generator().manual_seed(0)), torch.zeros(5)
    assert torch.isfinite(algorithm(pos, neg, index=torch.tensor([0, 4, 7])))
    assert float(algorithm.loss_unit) > 0.0
