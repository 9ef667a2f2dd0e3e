"""A run that breaks and is resumed ends where an unbroken one does, on any number of ranks; what is refused."""

import math
import warnings
from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.errors import CheckpointError
from lightning_tpauc.functional import decision_threshold, two_way_partial_auroc
from lightning_tpauc.training.checkpoint import KEY
from tests.helpers.problems import bare_trainer, make_trainer
from tests.helpers.resuming import (
    DIM,
    NUM_POS,
    Crash,
    CrashError,
    Losses,
    assert_resumes_on_other_ranks,
    assert_resumes_to_the_last_bit,
    assert_same_end,
    fit_on_ranks,
    make_datamodule,
    make_module,
    make_net,
    make_problem,
)
from tests.helpers.tensors import flat
from tests.helpers.tolerances import assert_close

forks = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:.*does not have many workers.*",
        "ignore:.*Checkpoint directory.*",
        "ignore::lightning_tpauc.errors.TPAUCAdvice",
    ),
]


def run(folder, module=None, data=None, crash=None, ckpt=None, every=3, limits=None):
    """8 steps an epoch, 32 in all, stages of 5 steps."""
    module, losses = module or make_module(), Losses()
    saver = ModelCheckpoint(folder, save_last=True, every_n_train_steps=every)
    callbacks = [StageCallback(every_n_steps=5), losses, saver, *([Crash(crash)] if crash is not None else [])]
    trainer = make_trainer(
        precision="32-true", callbacks=callbacks, enable_checkpointing=True, **(limits or {"max_epochs": 4})
    )
    try:
        trainer.fit(module, data or make_datamodule(), ckpt_path=ckpt)
    except CrashError:
        assert crash is not None
    return module, trainer, losses.by_step


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """The checkpoint after 12 steps of a run that broke at step 14."""
    folder = tmp_path_factory.mktemp("broken")
    run(folder, crash=14)
    return folder / "last.ckpt"


def test_resumed_equals_unbroken_where_the_number_of_steps_is_asked_for_early(tmp_path):
    def once(folder, **options):
        limits = {"max_steps": 27, "max_epochs": -1}
        return run(folder, make_module(touch_steps=True), make_datamodule(), limits=limits, **options)

    straight, _, losses = once(tmp_path / "a")
    once(tmp_path / "b", crash=14)
    torch.manual_seed(99)
    resumed, _, later = once(tmp_path / "b", ckpt=tmp_path / "b" / "last.ckpt")
    assert min(later) == 13
    assert all(torch.equal(loss, losses[step]) for step, loss in later.items())
    assert_same_end(straight, resumed)


def test_the_published_weights_are_the_average(broken):
    saved = torch.load(broken, weights_only=True)
    ours = saved[KEY]
    assert (ours["algorithm"]["num_positives"], ours["batches_seen"]) == (NUM_POS, 12)
    weight = saved["state_dict"]["backbone.0.weight"]
    assert torch.equal(weight, ours["average"]["mean"][0])
    assert not torch.equal(weight, ours["iterate"][0])
    loaded = TPAUCModule.load_from_checkpoint(broken, backbone=make_module().backbone)
    assert torch.equal(loaded.backbone[0].weight, weight)
    module = make_module()
    make_trainer(precision="32-true").validate(module, make_datamodule(), broken, verbose=False)
    assert torch.equal(module.backbone[0].weight, weight), "evaluation loads the published weights too"


def test_weights_only_checkpoint_holds_the_solution_alone(tmp_path):
    module, trainer, _ = run(tmp_path, limits={"max_steps": 3, "max_epochs": -1})
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    saved = torch.load(tmp_path / "weights.ckpt", weights_only=True)
    assert KEY not in saved
    assert torch.equal(saved["state_dict"]["backbone.0.weight"], module.backbone[0].weight)
    with pytest.raises(CheckpointError, match="holds no state of lightning_tpauc"):
        run(tmp_path, ckpt=tmp_path / "weights.ckpt")


# ---------------------------------------------------------------- all defaults together


STEPS = 60


def default_data(world=1, dtype=torch.float32):
    """Labels that can be predicted in part: the rectangle is held by the validation's scores."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(400, 4, generator=generator, dtype=torch.float64)
    y = (x[:, 0] + 0.7 * torch.randn(400, generator=generator, dtype=torch.float64) > 1).long()
    sizes = {"num_pos": 12 // world, "num_neg": 24 // world, "batch_size": 32}
    return PosNegDataModule((x.to(dtype), y), val_fraction=0.4, **sizes)


def default_module(gamma, duals, dtype=torch.float32):
    """Nothing is set but the rectangle, gamma for STACO2, and the kind of duals."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
    with torch.no_grad():  # it knows a little, so that these few steps at the default rate lead somewhere
        net[0].weight[:4, 0] += 1.0
        net[2].weight[0, :4] += 0.3
    return TPAUCModule(net, STACO(0.7, 0.3, gamma=gamma, duals=duals))


class Record(Callback):
    """Loss, learning rate and rectangle after every step; every rank writes down what it ends with."""

    def __init__(self, folder):
        self.folder, self.steps = folder, {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        seen = pl_module.training_state.batches_seen
        self.steps[seen] = float(outputs["loss"]), rate, pl_module.algorithm.tightness

    def on_train_end(self, trainer, pl_module):
        parts = {"weights": pl_module.backbone.state_dict(), "algorithm": pl_module.algorithm.state_dict()}
        content = flat({**parts, "training": pl_module.training_state.state_dict()})
        torch.save(content, self.folder / f"rank{trainer.global_rank}of{trainer.world_size}.pt")


def default_run(folder, gamma, duals, crash=None, ckpt=None, every=60, world=1, precision="32-true"):
    folder.mkdir(exist_ok=True)
    record, dtype = Record(folder), torch.float64 if precision == "64-true" else torch.float32
    saver = ModelCheckpoint(folder, save_last=True, every_n_train_steps=every)
    trainer = make_trainer(
        precision=precision, devices=world, strategy="ddp_fork" if world > 1 else "auto", enable_checkpointing=True,
        callbacks=[StageCallback(every_n_steps=14), record, saver, *([Crash(crash)] if crash is not None else [])],
        max_steps=STEPS, max_epochs=-1, val_check_interval=4, check_val_every_n_epoch=None,
    )  # fmt: skip
    try:
        trainer.fit(default_module(gamma, duals, dtype), default_data(world, dtype), ckpt_path=ckpt)
    except CrashError:
        return record.steps, []
    return record.steps, [torch.load(folder / f"rank{rank}of{world}.pt") for rank in range(world)]


KINDS = pytest.mark.parametrize(
    ("gamma", "duals"),
    [(math.inf, "per_positive"), (20.0, "per_positive"), (math.inf, "tracked")],
    ids=["STACO1", "STACO2", "tracked"],
)


# the warm-up lasts 6 steps, the shrinking 30; a validation every 4, a stage of STACO2 every 14
@KINDS
def test_a_killed_run_of_all_defaults_resumes_bit_for_bit(tmp_path, gamma, duals):
    steps, (straight,) = default_run(tmp_path / "a", gamma, duals)
    rates, tightness = [step[1] for step in steps.values()], [step[2] for step in steps.values()]
    assert rates[0] < rates[3] < rates[5] == rates[-1] == 1e-2
    assert tightness[0] < max(tightness[:20])
    for every, crash in ((3, 5), (4, 22), (14, 30)):
        folder = tmp_path / f"b{every}"
        default_run(folder, gamma, duals, crash, every=every)
        torch.manual_seed(99)
        later, (resumed,) = default_run(folder, gamma, duals, ckpt=folder / "last.ckpt", every=every)
        assert 1 < min(later) <= crash
        assert all(values == steps[step] for step, values in later.items())
        assert straight.keys() == resumed.keys()
        assert [n for n in straight if not torch.equal(straight[n].nan_to_num(), resumed[n].nan_to_num())] == []


@pytest.mark.ddp
@forks
@KINDS
def test_two_ranks_do_what_one_does(tmp_path, gamma, duals):
    _, (single,) = default_run(tmp_path / "one", gamma, duals, precision="64-true")
    assert 0.0 < float(single["/algorithm/tightness/0"]) < 1.0, "the guard on validation scores acts"
    for other in default_run(tmp_path / "two", gamma, duals, world=2, precision="64-true")[1]:
        assert other.keys() == single.keys()
        for name, value in single.items():
            if "/generator" not in name and "/memory" not in name:
                assert_close(other[name].double(), value.double(), "trajectory64")


# ---------------------------------------------------------------- ranks


def run_ranks(folder, world, net=None, *, every=3, crash=None, ckpt=None):
    """What each rank ended with; S = B = 12 over all ranks."""
    x, y = make_problem()
    share = 12 // world
    data = PosNegDataModule((x, y), val_dataset=(x[:40], y[:40]), num_pos=share, num_neg=share, batch_size=16)
    module = make_module()
    module.backbone = net if net is not None else module.backbone
    stages = [StageCallback(every_n_steps=5)]
    return fit_on_ranks(module, data, folder, world, stages, steps=20, every=every, crash=crash, ckpt=ckpt)


@pytest.mark.ddp
@forks
def test_three_ranks_resume_to_the_last_bit(tmp_path):
    """Sums of three depend on the order; dropout and statistics of batch normalisation differ between ranks."""
    assert_resumes_to_the_last_bit(partial(run_ranks, world=3), tmp_path)


@pytest.mark.ddp
@forks
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3)])
def test_resumed_on_another_number_of_ranks(tmp_path, before, after):
    assert_resumes_on_other_ranks(run_ranks, tmp_path, before, after)


# ---------------------------------------------------------------- what does not belong


def test_what_does_not_belong_is_refused(broken, tmp_path):
    with pytest.raises(CheckpointError, match="written with another training data"):
        run(tmp_path, data=make_datamodule(seed=4), ckpt=broken)
    with pytest.raises(CheckpointError, match="written with another number of positives: 24, but now 20"):
        run(tmp_path, data=make_smaller(), ckpt=broken)
    other = make_module()
    other.optimizer_factory = lambda p: torch.optim.RMSprop(p, lr=0.01)
    with pytest.raises(CheckpointError, match="written with another optimizer: Adam, but now RMSprop"):
        run(tmp_path, module=other, ckpt=broken)
    with pytest.raises(CheckpointError, match=r"averaged other weights: .*infinity \(STACO1\) and a number"):
        run(tmp_path, module=make_module(gamma=math.inf), ckpt=broken)
    module = make_module()
    module.algorithm.max_fpr = 0.45
    with pytest.raises(CheckpointError, match=r"another min_tpr and max_fpr: \[0.6, 0.4\], but now \[0.6, 0.45\]"):
        run(tmp_path, module=module, ckpt=broken)
    saved = torch.load(broken, weights_only=True)
    saved[KEY]["run"]["algorithm"] = "SOTA"
    torch.save(saved, tmp_path / "other.ckpt")
    with pytest.raises(CheckpointError, match="written with another algorithm: SOTA, but now STACO"):
        run(tmp_path, ckpt=tmp_path / "other.ckpt")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"batch_size": 7, "num_workers": 0}, None),
        ({"num_pos": 4, "num_neg": 8}, "`num_pos` from 8 to 4, `num_neg` from 16 to 8"),
        ({"seed": 1}, "`seed` from 0 to 1"),
        ({"steps_per_epoch": 3}, "`steps_per_epoch` from None to 3"),
        ({"sampling": "uniform"}, "`sampling` from PosNegSampler to UniformSampler"),
    ],
)
def test_other_batches_than_the_checkpoints_run_drew_are_said(tmp_path, changed, words):
    def fit(epochs, ckpt=None, **options):
        module = TPAUCModule(torch.nn.Linear(5, 1), STACO())
        data = PosNegDataModule(make_problem(), **{"num_pos": 8, "num_neg": 16, **options})
        trainer = bare_trainer(max_epochs=epochs)
        trainer.fit(module, data, ckpt_path=ckpt)
        trainer.save_checkpoint(tmp_path / "one.ckpt")
        return module.training_state.batches_seen

    seen = fit(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert fit(2, tmp_path / "one.ckpt", **changed) > seen
    found = [str(warning.message) for warning in caught if "draws other batches" in str(warning.message)]
    assert len(found) == (words is not None)
    assert words is None or f"({words}; sizes are" in found[0]


# ---------------------------------------------------------------- what belongs to the weights


class Fixed(TPAUCModule):
    """A subclass that leaves the algorithm to its default."""

    def __init__(self, algorithm=None):
        super().__init__(algorithm=algorithm, log_objective=True)
        self.net = make_net()

    def forward(self, inputs):
        return self.net(inputs)


@pytest.mark.parametrize("weights_only", [True, False])
def test_a_module_without_an_algorithm_evaluates_the_checkpoints_rectangle(tmp_path, weights_only):
    """Not the default one; an algorithm that is given decides itself."""
    x, y = make_problem()
    path, data = tmp_path / "a.ckpt", PosNegDataModule((x, y), test_dataset=(x, y), num_pos=4, num_neg=8)
    trained = Fixed(STACO(0.7, 0.2))
    trainer = make_trainer(precision="32-true", max_steps=3, max_epochs=-1)
    trainer.fit(trained, data)
    trainer.save_checkpoint(path, weights_only=weights_only)

    def tested(module, ckpt_path=None):
        (result,) = make_trainer(precision="32-true").test(module, data, ckpt_path=ckpt_path, verbose=False)
        return result["test/tpauc"], result["test/objective"]

    expected = tested(trained)
    assert tested(Fixed.load_from_checkpoint(path)) == expected
    assert tested(Fixed(), path) == expected
    with torch.no_grad():
        area = two_way_partial_auroc(trained(x).squeeze(1), y, 0.7, 0.2)
    assert expected[0] == pytest.approx(area.item(), abs=1e-6)
    chosen = tested(Fixed.load_from_checkpoint(path, algorithm=STACO(0.1, 0.9)))
    assert chosen[0] != expected[0]


def test_a_checkpoint_has_the_threshold_of_its_own_weights_or_none(tmp_path):
    """Between validations it is left out; the others have what validation scores give."""
    x, y = make_problem()
    saver = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=5, save_top_k=-1)
    trainer = make_trainer(precision="32-true", max_epochs=5, callbacks=[saver], enable_checkpointing=True)
    module = make_module()
    trainer.fit(module, make_datamodule())
    trainer.save_checkpoint(tmp_path / "end.ckpt")
    held = 0
    for path in sorted(tmp_path.glob("*.ckpt")):
        loaded = TPAUCModule.load_from_checkpoint(path, backbone=make_net(), algorithm=STACO(0.6, 0.4)).eval()
        if path.name == "end.ckpt" or loaded.threshold is not None:
            held += 1
            with torch.no_grad():
                scores = loaded.raw_scores(x[:40])
            assert loaded.threshold == pytest.approx(decision_threshold(scores, y[:40], 0.6, 0.4).threshold, abs=1e-6)
            assert loaded.operating_point.step == loaded.training_state.weights_step
        else:
            make_trainer(precision="32-true").validate(loaded, make_datamodule(), verbose=False)
            assert loaded.threshold is not None, "it can be chosen anew"
    assert held >= 1


def test_the_names_of_columns_come_with_a_checkpoint(tmp_path):
    pd = pytest.importorskip("pandas")
    x, y = make_problem()
    names = ["crp", "age", "pulse", "height", "weight"]
    table = pd.DataFrame(x.numpy(), columns=names).assign(died=y.numpy())
    trainer = make_trainer(precision="32-true", max_epochs=2)
    module = TPAUCModule(nn.Linear(DIM, 1), STACO(0.6, 0.4))
    trainer.fit(module, PosNegDataModule(table, targets="died", num_pos=4, num_neg=8))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    straight = trainer.predict(module, PosNegDataModule(predict_dataset=table[names]))
    loaded = TPAUCModule.load_from_checkpoint(tmp_path / "a.ckpt", backbone=nn.Linear(DIM, 1))
    assert loaded.input_layout == module.input_layout
    turned = PosNegDataModule(predict_dataset=table[names[::-1]])
    again = make_trainer(precision="32-true").predict(loaded, turned)
    assert torch.equal(torch.cat([batch["score"] for batch in again]), torch.cat([b["score"] for b in straight]))
    renamed = PosNegDataModule(predict_dataset=table[names].rename(columns={"crp": "CRP"}))
    with pytest.raises(ValueError, match="CRP"):
        make_trainer(precision="32-true").predict(loaded, renamed)


def make_smaller():
    x, y = make_problem(num_pos=20)
    return PosNegDataModule((x, y), num_pos=4, num_neg=8)


def test_fine_tuning_starts_from_the_published_weights(broken, tmp_path):
    weight, seen = torch.load(broken, weights_only=True)["state_dict"]["backbone.0.weight"], []

    class First(Callback):
        def on_train_start(self, trainer, pl_module):
            seen.append(pl_module.backbone[0].weight.detach().clone())

    trainer = make_trainer(precision="32-true", callbacks=[First()], max_steps=2, max_epochs=-1)
    trainer.fit(make_module(init_from=str(broken)), make_smaller())
    assert torch.equal(seen[0], weight)
    with pytest.raises(CheckpointError, match=r"There is no checkpoint 'nowhere\.ckpt'"):
        make_trainer(precision="32-true").fit(make_module(init_from="nowhere.ckpt"), make_smaller())
    (tmp_path / "cut.ckpt").write_bytes(broken.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"cut.ckpt' is not whole: its content can't be read"):
        make_trainer(precision="32-true").fit(make_module(init_from=str(tmp_path / "cut.ckpt")), make_smaller())
