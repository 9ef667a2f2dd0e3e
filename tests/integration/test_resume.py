"""A run that breaks and is resumed ends where an unbroken one does, to the last bit."""

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
from lightning_tpauc.functional import two_way_partial_auroc
from lightning_tpauc.training.checkpoint import FORMAT_VERSION, KEY
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

forks = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*", "ignore:.*Checkpoint directory.*"),
]


def run(folder, module=None, data=None, crash=None, ckpt=None, every=None, limits=None, stage=5):
    module = module or make_module()
    losses = Losses()
    saver = ModelCheckpoint(folder, save_last=True, every_n_train_steps=every, save_on_train_epoch_end=every is None)
    callbacks = [StageCallback(every_n_steps=stage), losses, saver]
    trainer = make_trainer(
        precision="32-true",
        callbacks=callbacks + ([Crash(crash)] if crash is not None else []),
        enable_checkpointing=True,
        **(limits or {"max_epochs": 4}),
    )
    try:
        trainer.fit(module, data or make_datamodule(), ckpt_path=ckpt)
    except CrashError:
        return module, trainer, losses.by_step
    return module, trainer, losses.by_step


# 24 positives by 4 and 60 negatives by 8: 8 steps an epoch, 32 in all; stages of 5 steps
@pytest.mark.parametrize(
    ("workers", "touch_steps", "every", "crash"),
    [
        pytest.param(0, False, 3, 14, id="mid-epoch"),
        pytest.param(0, True, 3, 14, id="mid-epoch, estimated_stepping_batches"),
        pytest.param(0, False, 5, 16, id="stage's end"),
        pytest.param(0, False, 8, 17, id="epoch's last step"),
        pytest.param(0, False, None, 19, id="epoch's end"),
        pytest.param(2, True, 7, 17, id="mid-epoch, two workers, estimated_stepping_batches"),
        pytest.param(2, False, None, 19, id="epoch's end, two workers"),
    ],
)
def test_resumed_equals_unbroken(tmp_path, workers, touch_steps, every, crash):
    straight, _, losses = run(
        tmp_path / "a", make_module(touch_steps=touch_steps), make_datamodule(workers), every=every
    )
    run(tmp_path / "b", make_module(touch_steps=touch_steps), make_datamodule(workers), crash=crash, every=every)
    ckpt = tmp_path / "b" / "last.ckpt"
    torch.manual_seed(99)
    resumed, trainer, later = run(
        tmp_path / "b", make_module(touch_steps=touch_steps), make_datamodule(workers), ckpt=ckpt, every=every
    )
    assert trainer.global_step == 32
    assert later
    assert min(later) > 1
    for step, loss in later.items():
        assert torch.equal(loss, losses[step]), f"step {step}"
    assert_same_end(straight, resumed)


@pytest.mark.parametrize("limits", [{"max_steps": 27, "max_epochs": -1}, {"max_steps": 27, "max_epochs": 9}])
@pytest.mark.parametrize("every", [None, 3])
def test_resumed_equals_unbroken_with_max_steps(tmp_path, limits, every):
    straight, _, _ = run(tmp_path / "a", every=every, limits=limits)
    run(tmp_path / "b", crash=20, every=every, limits=limits)
    resumed, trainer, _ = run(tmp_path / "b", ckpt=tmp_path / "b" / "last.ckpt", every=every, limits=limits)
    assert trainer.global_step == 27
    assert_same_end(straight, resumed)


def test_staco1_resumes_its_average(tmp_path):
    straight, _, _ = run(tmp_path / "a", make_module(gamma=math.inf), every=3)
    run(tmp_path / "b", make_module(gamma=math.inf), crash=14, every=3)
    resumed, _, _ = run(tmp_path / "b", make_module(gamma=math.inf), ckpt=tmp_path / "b" / "last.ckpt", every=3)
    assert resumed.training_state.average.count == 32
    assert_same_end(straight, resumed)


def test_checkpoint_is_safe_and_published_weights_are_the_average(tmp_path):
    run(tmp_path, crash=14, every=3)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    ours = saved[KEY]
    assert ours["format_version"] == FORMAT_VERSION
    assert ours["algorithm"]["state"]["num_positives"] == NUM_POS
    assert ours["batches_seen"] == 12
    weight = saved["state_dict"]["backbone.0.weight"]
    assert torch.equal(weight, ours["iterates"]["mean"][0])
    assert not torch.equal(weight, ours["iterates"]["iterate"][0])
    loaded = TPAUCModule.load_from_checkpoint(tmp_path / "last.ckpt", backbone=make_module().backbone)
    assert torch.equal(loaded.backbone[0].weight, weight)
    module = make_module()
    make_trainer(precision="32-true").validate(module, make_datamodule(), tmp_path / "last.ckpt", verbose=False)
    assert torch.equal(module.backbone[0].weight, weight), "evaluation loads the published weights too"


def test_weights_only_checkpoint_holds_the_solution_alone(tmp_path):
    module, trainer, _ = run(tmp_path / "x", limits={"max_steps": 3, "max_epochs": -1})
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    saved = torch.load(tmp_path / "weights.ckpt", weights_only=True)
    assert KEY not in saved
    assert torch.equal(saved["state_dict"]["backbone.0.weight"], module.backbone[0].weight)
    with pytest.raises(CheckpointError, match="holds no state of lightning_tpauc"):
        run(tmp_path / "y", ckpt=tmp_path / "weights.ckpt")


def test_saved_after_training_goes_on_from_the_last_iterate(tmp_path):
    straight, _, _ = run(tmp_path / "a", limits={"max_epochs": 4})
    _, trainer, _ = run(tmp_path / "b", limits={"max_epochs": 2})
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    resumed, _, _ = run(tmp_path / "b", ckpt=tmp_path / "half.ckpt", limits={"max_epochs": 4})
    assert_same_end(straight, resumed)


def run_ranks(folder, world, net=None, *, every=3, crash=None, ckpt=None):
    """What each rank ended with; S = B = 12 over all ranks."""
    x, y = make_problem()
    share = 12 // world
    data = PosNegDataModule((x, y), val_dataset=(x[:40], y[:40]), num_pos=share, num_neg=share, batch_size=16)
    module = make_module()
    module.backbone = net if net is not None else module.backbone
    stages = [StageCallback(every_n_steps=5)]
    return fit_on_ranks(module, data, folder, world, stages, steps=32, every=every, crash=crash, ckpt=ckpt)


@pytest.mark.ddp
@forks
@pytest.mark.parametrize(
    ("world", "every", "crash"),
    [
        pytest.param(2, 3, 14, id="mid-epoch"),
        pytest.param(2, 5, 16, id="stage's end"),
        pytest.param(3, 3, 14, id="three ranks"),  # from three on a sum depends on the order
    ],
)
def test_ranks_resume_to_the_last_bit(tmp_path, world, every, crash):
    """Dropout draws from each rank's own generator, and statistics of batch normalisation differ between ranks."""
    assert_resumes_to_the_last_bit(partial(run_ranks, world=world, every=every), tmp_path, crash)


@pytest.mark.ddp
@forks
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (3, 2)])
def test_resumed_on_another_number_of_ranks(tmp_path, before, after):
    assert_resumes_on_other_ranks(run_ranks, tmp_path, before, after)


def edited(path, target, **changes):
    saved = torch.load(path, weights_only=True)
    saved[KEY].update(changes)
    torch.save(saved, target)
    return target


def test_what_does_not_belong_is_refused(tmp_path):
    run(tmp_path, crash=14, every=3)
    last = tmp_path / "last.ckpt"
    newer = edited(last, tmp_path / "newer.ckpt", format_version=FORMAT_VERSION + 1)
    with pytest.raises(CheckpointError, match=rf"format {FORMAT_VERSION + 1} .* reads up to {FORMAT_VERSION}"):
        run(tmp_path / "y", ckpt=newer)
    with pytest.raises(CheckpointError, match="written on other training data"):
        run(tmp_path / "y", data=make_datamodule(seed=4), ckpt=last)
    with pytest.raises(CheckpointError, match="written for 24 positive examples, but the training set has 20"):
        run(tmp_path / "y", data=make_smaller(), ckpt=last)
    other = edited(last, tmp_path / "o.ckpt", algorithm={"name": "SOTA", "state": {}})
    with pytest.raises(CheckpointError, match="written by SOTA, but the module trains with STACO"):
        run(tmp_path / "y", ckpt=other)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, None),
        ({"batch_size": 7, "num_workers": 0}, None),
        ({"num_pos": 4}, "`num_pos` from 8 to 4"),
        ({"num_neg": 32}, "`num_neg` from 16 to 32"),
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
        return module

    seen = fit(1).training_state.batches_seen
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert fit(2, tmp_path / "one.ckpt", **changed).training_state.batches_seen > seen
    found = [str(warning.message) for warning in caught if "draws other batches" in str(warning.message)]
    assert len(found) == (words is not None)
    assert words is None or f"({words}; sizes are" in found[0]


def test_another_rectangle_is_refused_when_training_goes_on(tmp_path):
    run(tmp_path, crash=14, every=3)
    module = make_module()
    module.algorithm.max_fpr = 0.45
    with pytest.raises(CheckpointError, match=r"trained for min_tpr=0.6 and max_fpr=0.4, .*STACO for 0.6 and 0.45"):
        run(tmp_path / "y", module=module, ckpt=tmp_path / "last.ckpt")


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
    assert Fixed.load_from_checkpoint(path, algorithm=STACO(0.1, 0.9)).algorithm.max_fpr == 0.9


def test_another_optimizer_and_other_stages_are_refused(tmp_path):
    run(tmp_path / "stages", crash=14, every=3)
    run(tmp_path / "none", module=make_module(gamma=math.inf), crash=14, every=3)
    other = make_module()
    other.optimizer_factory = lambda p: torch.optim.RMSprop(p, lr=0.01)
    with pytest.raises(CheckpointError, match=r"written with the optimizer Adam, but the module trains with RMSprop"):
        run(tmp_path / "y", module=other, ckpt=tmp_path / "stages" / "last.ckpt")
    for before, gamma in (("stages", math.inf), ("none", 4.0)):
        with pytest.raises(
            CheckpointError, match=r"kept other anchors and averages .*infinity \(STACO1\) and a number"
        ):
            run(tmp_path / "y", module=make_module(gamma=gamma), ckpt=tmp_path / before / "last.ckpt")


def make_smaller():
    x, y = make_problem(num_pos=20)
    return PosNegDataModule((x, y), num_pos=4, num_neg=8)


def test_fine_tuning_starts_from_the_published_weights(tmp_path):
    run(tmp_path / "first", every=3, limits={"max_steps": 6, "max_epochs": -1})
    source = tmp_path / "first" / "last.ckpt"
    weight = torch.load(source, weights_only=True)["state_dict"]["backbone.0.weight"]
    seen = []

    class First(Callback):
        def on_train_start(self, trainer, pl_module):
            seen.append(pl_module.backbone[0].weight.detach().clone())

    module = make_module(init_from=str(source))
    trainer = make_trainer(precision="32-true", callbacks=[First()], max_steps=2, max_epochs=-1)
    trainer.fit(module, make_smaller())
    assert torch.equal(seen[0], weight)
    with pytest.raises(CheckpointError, match="there is no such file"):
        make_trainer(precision="32-true").fit(make_module(init_from="nowhere.ckpt"), make_smaller())
    (tmp_path / "cut.ckpt").write_bytes(source.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"cut.ckpt'` can't be used: it is not whole: its 1000 bytes"):
        make_trainer(precision="32-true").fit(make_module(init_from=str(tmp_path / "cut.ckpt")), make_smaller())
    wrong = TPAUCModule(nn.Linear(DIM, 1), init_from=str(source))
    with pytest.raises(CheckpointError, match=r"do not fit TPAUCModule: it lacks 'backbone.bias'"):
        make_trainer(precision="32-true").fit(wrong, make_smaller())
