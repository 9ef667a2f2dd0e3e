"""Trainings with weights of examples and splits by groups: resumed, on ranks, with every kind of start, compared."""

import pytest
import torch
from torch import nn

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO, CrossEntropy, FullBatch
from lightning_tpauc.errors import ArgumentError, CheckpointError
from lightning_tpauc.functional import exact_duals
from tests.helpers.problems import make_trainer
from tests.helpers.resuming import Crash, CrashError
from tests.helpers.tensors import flat
from tests.helpers.tolerances import assert_close

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers.*", "ignore:.*use of fork.*:DeprecationWarning", "ignore:PAUCI is made for",
    "ignore:Only .* of the .* positives a step", "ignore:.*A step has .* positives instead of",
)  # fmt: skip


def problem():
    generator = torch.Generator().manual_seed(3)
    y = torch.arange(160) % 4 == 0
    x = torch.randn(160, 4, generator=generator, dtype=torch.float64) + 0.8 * y[:, None]
    return x, y.long(), torch.rand(160, generator=generator) * (torch.arange(160) % 5 > 0) * 3, torch.arange(160) // 8


def make_data(world=1, **options):
    x, y, weights, groups = problem()
    given = {"sample_weight": weights, "groups": groups, "val_fraction": 0.25, **options}
    return PosNegDataModule((x, y), num_pos=6 // world, num_neg=12 // world, **given)


def make_module(algorithm=None):
    torch.manual_seed(0)
    algorithm = algorithm or STACO(0.5, 0.5, gamma=4.0)
    return TPAUCModule(nn.Linear(4, 1), algorithm, lambda p: torch.optim.Adam(p, lr=0.01))


def final(trainer, module, folder):
    trainer.save_checkpoint(folder / "final.ckpt")
    return flat({"weights": module.state_dict(), "algorithm": module.algorithm.state_dict()})


def test_a_resumed_run_is_the_unbroken_one(tmp_path):
    stages = {"max_epochs": -1, "max_steps": 40, "enable_checkpointing": True, "default_root_dir": tmp_path}
    straight, module = make_trainer(**stages, callbacks=[StageCallback(every_n_steps=16)]), make_module()
    straight.fit(module, make_data())
    expected = final(straight, module, tmp_path)
    for at_step in (0, 16, 33):
        broken = make_trainer(**stages, callbacks=[StageCallback(every_n_steps=16), Crash(at_step)])
        with pytest.raises(CrashError):
            broken.fit(make_module(), make_data())
        broken.save_checkpoint(tmp_path / "broken.ckpt")
        resumed, again = make_trainer(**stages, callbacks=[StageCallback(every_n_steps=16)]), make_module()
        resumed.fit(again, make_data(), ckpt_path=tmp_path / "broken.ckpt")
        actual = flat({"weights": again.state_dict(), "algorithm": again.algorithm.state_dict()})
        assert all(torch.equal(torch.as_tensor(actual[k]), torch.as_tensor(v)) for k, v in expected.items())
    other = make_data(sample_weight=problem()[2] + 0.1)
    with pytest.raises(CheckpointError, match="written"):
        make_trainer(**stages).fit(make_module(), other, ckpt_path=tmp_path / "broken.ckpt")


@pytest.mark.ddp
@pytest.mark.parametrize("algorithm", [STACO, CrossEntropy])
def test_two_ranks_train_as_one_process(algorithm):
    results = []
    for options in ({"devices": 1}, {"devices": 2, "strategy": "ddp_fork"}):
        module = make_module(algorithm(0.5, 0.5))
        make_trainer(max_epochs=3, **options).fit(module, make_data(options["devices"]))
        results.append(module.state_dict())
    for name, value in results[0].items():
        if not name.endswith("_extra_state"):  # the digits of a threshold, as text
            assert_close(results[1][name], value, "trajectory64")


def test_the_exact_start_is_that_of_the_weighted_training_set():
    module, data = make_module(STACO(0.6, 0.4)), make_data(sample_weight=problem()[2].round())

    class Started(StageCallback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.global_step == 0:
                self.s, self.s_prime = pl_module.algorithm.s.clone(), pl_module.algorithm.s_prime.clone()
                self.scores = pl_module.raw_scores(problem()[0]).detach()

    started = Started(shrink_rectangle=False)
    make_trainer(callbacks=[started], max_steps=1).fit(module, data)
    weights, labels = problem()[2].round().long(), problem()[1]
    weights[torch.from_numpy(data._prepared.training.parts["val"])] = 0
    copies = torch.arange(160).repeat_interleave(weights)
    pos, neg = (started.scores[copies[labels[copies] == value]] for value in (1, 0))
    # scored negatives are as many as there are negatives, each as often as its weight says, up to one
    count = int(((labels == 0) & (weights > 0)).sum())
    lower, upper = (
        exact_duals(pos, neg, 0.6, 0.4 + d, surrogate=module.algorithm.surrogate) for d in (4 / count, -4 / count)
    )
    assert lower.s_prime <= started.s_prime <= upper.s_prime
    assert lower.s_prime < upper.s_prime < lower.s_prime + 0.6


def test_full_batches_refuse_weights():
    with pytest.raises(ArgumentError, match="`sampling='full'` takes all examples alike, but `sample_weight`"):
        make_trainer().fit(make_module(FullBatch()), make_data())
