"""All defaults together: a run that was killed resumes bit for bit, and two ranks do what one does."""

import math

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.training.rectangle import shrinking_steps
from tests.helpers.problems import make_trainer
from tests.helpers.resuming import Crash, CrashError
from tests.helpers.tolerances import assert_close

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:.*does not have many workers.*",
        "ignore:.*Checkpoint directory.*",
        "ignore::lightning_tpauc.errors.TPAUCAdvice",
    ),
]

STEPS = 60


def make_data(world=1, dtype=torch.float32):
    """Labels that can be predicted in part: the rectangle is held by the validation's scores."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(400, 4, generator=generator, dtype=torch.float64)
    y = (x[:, 0] + 0.7 * torch.randn(400, generator=generator, dtype=torch.float64) > 1).long()
    sizes = {"num_pos": 12 // world, "num_neg": 24 // world, "batch_size": 32}
    return PosNegDataModule((x.to(dtype), y), val_fraction=0.4, **sizes)


def make_module(gamma, duals="per_positive", dtype=torch.float32):
    """Nothing is set but the rectangle, gamma for STACO2, and the kind of duals.

    Without a bias of the score, which has no gradient but rounding: Adam divides it by its own size, and no two orders
    of a sum would agree on it.
    """
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1, bias=False)).to(dtype)
    with torch.no_grad():  # it knows a little, so that these few steps at the default rate lead somewhere
        net[0].weight[:4, 0] += 1.0
        net[2].weight[0, :4] += 0.3
    return TPAUCModule(net, STACO(0.7, 0.3, gamma=gamma, duals=duals))


class Record(Callback):
    """Loss, learning rate, rectangle and ratio after every step."""

    def __init__(self):
        self.steps = {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        schedule = pl_module.training_state.rectangle_schedule
        held_out = tuple(map(tuple, schedule.held_out))
        self.steps[pl_module.training_state.batches_seen] = (
            float(outputs["loss"]),
            rate,
            pl_module.algorithm.tightness,
            held_out,
        )


def run(folder, gamma, duals="per_positive", crash=None, ckpt=None, every=None, steps=STEPS, validate=4, first=()):
    module, record = make_module(gamma, duals), Record()
    saver = ModelCheckpoint(folder, save_last=True, every_n_train_steps=every)
    crash = Crash(crash) if isinstance(crash, int) else crash
    callbacks = [*first, StageCallback(every_n_steps=14), record, saver, *([crash] if crash is not None else [])]
    trainer = make_trainer(
        precision="32-true", callbacks=callbacks, enable_checkpointing=True, max_steps=steps, max_epochs=-1,
        val_check_interval=validate, check_val_every_n_epoch=None, num_sanity_val_steps=0,
    )  # fmt: skip
    try:
        trainer.fit(module, make_data(), ckpt_path=ckpt)
    except CrashError:
        assert crash is not None
    return module, record.steps


def whole_state(module):
    """All that training and evaluation go by, as nested primitives and tensors."""
    return {
        "weights": dict(module.state_dict()),
        "algorithm": module.algorithm.state_dict(),
        "iterates": module.training_state.average.state_dict(),
        "best": module.training_state.best.state_dict(),
        "schedule": module.training_state.rectangle_schedule.state_dict(),
        "memory": module.training_state.memory.state_dict(),
    }


def assert_equal(first, second, name=""):
    if isinstance(first, dict):
        assert list(first) == list(second), name
        for key in first:
            assert_equal(first[key], second[key], f"{name}.{key}")
    elif isinstance(first, (list, tuple)):
        assert len(first) == len(second), name
        for k, (a, b) in enumerate(zip(first, second, strict=True)):
            assert_equal(a, b, f"{name}[{k}]")
    elif first is None or isinstance(first, str):
        assert first == second, name
    else:
        assert torch.equal(torch.as_tensor(first).nan_to_num(7.5), torch.as_tensor(second).nan_to_num(7.5)), name


# the warm-up lasts 6 steps, the shrinking 30; a validation every 4, a stage of STACO2 every 14
@pytest.mark.parametrize("gamma", [math.inf, 20.0], ids=["STACO1", "STACO2"])
@pytest.mark.parametrize("duals", ["per_positive", "tracked"])
@pytest.mark.parametrize(
    ("every", "crash"),
    [
        pytest.param(3, 5, id="in the warm-up"),
        pytest.param(5, 19, id="while the rectangle shrinks"),
        pytest.param(4, 22, id="at a validation"),
        pytest.param(14, 30, id="at a stage's end"),
        pytest.param(9, 50, id="after all of it"),
    ],
)
def test_a_killed_run_resumes_bit_for_bit(tmp_path, gamma, duals, every, crash):
    straight, steps = run(tmp_path / "a", gamma, duals, every=every)
    assert set(range(1, STEPS + 1)) == set(steps)
    rates, tightness = [step[1] for step in steps.values()], [step[2] for step in steps.values()]
    assert rates[0] < rates[3] < rates[5] == rates[-1] == 1e-2
    assert tightness[0] < max(tightness[:20])
    assert all(step[3] for step in list(steps.values())[8:])
    assert straight.training_state.best.weights

    run(tmp_path / "b", gamma, duals, crash=crash, every=every)
    torch.manual_seed(99)
    resumed, later = run(tmp_path / "b", gamma, duals, ckpt=tmp_path / "b" / "last.ckpt", every=every)
    assert later
    assert min(later) > 1
    for step, values in later.items():
        assert values == steps[step], f"step {step}"
    assert_equal(whole_state(straight), whole_state(resumed))


class CrashInValidation(Callback):
    """Raises when the validation after a step begins; a checkpoint of that step is saved already."""

    def __init__(self, step):
        self.step = step

    def on_validation_start(self, trainer, pl_module):
        if pl_module.training_state.batches_seen == self.step:
            raise CrashError


@pytest.mark.parametrize("steps", [57, 59])
@pytest.mark.parametrize("at_the_end", [False, True])
def test_the_rectangle_of_a_run_of_odd_length_shrinks_alike_after_resuming(tmp_path, steps, at_the_end, monkeypatch):
    asked = []

    def count(trainer):
        asked.append(shrinking_steps(trainer))
        return asked[-1]

    monkeypatch.setattr("lightning_tpauc.training.stages.shrinking_steps", count)
    kwargs = {"every": steps if at_the_end else 5, "steps": steps, "validate": steps if at_the_end else 4}
    straight, seen = run(tmp_path / "a", math.inf, **kwargs)
    run(tmp_path / "b", math.inf, crash=CrashInValidation(steps) if at_the_end else 19, **kwargs)
    resumed, later = run(tmp_path / "b", math.inf, ckpt=tmp_path / "b" / "last.ckpt", **kwargs)
    assert asked == [steps // 2] * 3, "once a run"
    assert (later == {}) == at_the_end
    assert all(values == seen[step] for step, values in later.items())
    assert_equal(whole_state(straight), whole_state(resumed))


def test_the_guard_on_validation_scores_acts_in_these_runs(tmp_path):
    """Or its resumption would not have been tried."""
    module, steps = run(tmp_path, math.inf)
    schedule = module.training_state.rectangle_schedule
    assert 0.0 < module.algorithm.tightness < 1.0
    assert schedule.held == [True]
    assert schedule._held_out_ratio(min(1.0, module.algorithm.tightness + 0.1), 0) >= schedule.hold_at
    assert steps[STEPS][2] == module.algorithm.tightness


class SaveFirst(Callback):
    """Saves at the end of a step, before the callback of the stages has had its turn, and ends the run."""

    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if pl_module.training_state.batches_seen == self.step:
            trainer.save_checkpoint(self.path)
            raise CrashError


@pytest.mark.parametrize("step", [9, 14, 15])
def test_a_move_of_the_rectangle_that_a_checkpoint_came_before_is_made_on_resuming(tmp_path, step):
    straight, steps = run(tmp_path / "a", 20.0)
    with pytest.raises(AssertionError):  # `run` expects its own crash
        run(tmp_path / "b", 20.0, first=[SaveFirst(step, tmp_path / "first.ckpt")])
    resumed, later = run(tmp_path / "b", 20.0, ckpt=tmp_path / "first.ckpt")
    assert min(later) == step + 1
    assert later == {number: values for number, values in steps.items() if number > step}
    assert_equal(whole_state(straight), whole_state(resumed))


class Dump(Callback):
    def __init__(self, folder):
        self.folder = folder

    def on_train_end(self, trainer, pl_module):
        torch.save(whole_state(pl_module), self.folder / f"rank{trainer.global_rank}of{trainer.world_size}.pt")


@pytest.mark.ddp
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("gamma", [math.inf, 20.0], ids=["STACO1", "STACO2"])
@pytest.mark.parametrize("duals", ["per_positive", "tracked"])
def test_two_ranks_do_what_one_does(tmp_path, gamma, duals):
    for world in (1, 2):
        trainer = make_trainer(
            devices=world, strategy="ddp_fork" if world > 1 else "auto", max_steps=STEPS, max_epochs=-1,
            callbacks=[Dump(tmp_path), StageCallback(every_n_steps=14)], val_check_interval=4,
            check_val_every_n_epoch=None, num_sanity_val_steps=1,
        )  # fmt: skip
        trainer.fit(make_module(gamma, duals, torch.float64), make_data(world, torch.float64))
    single = torch.load(tmp_path / "rank0of1.pt")
    for rank in range(2):
        other = torch.load(tmp_path / f"rank{rank}of2.pt")
        assert other["algorithm"]["tightness"] == single["algorithm"]["tightness"] > 0
        assert other["schedule"]["held"] == single["schedule"]["held"]
        assert other["best"]["step"] == single["best"]["step"]
        assert_close(*(torch.tensor(run["schedule"]["held_out"]) for run in (other, single)), "trajectory64")
        for part in ("weights", "algorithm"):
            for name, value in single[part].items():
                if isinstance(value, torch.Tensor):
                    assert_close(other[part][name], value, "trajectory64")
        for ours, theirs in zip(other["best"]["weights"], single["best"]["weights"], strict=True):
            assert_close(ours, theirs, "trajectory64")
