"""What people switch on in a Trainer works with manual optimization, averaged weights and drawn batches."""

import contextlib
import math
from functools import partial
from unittest import mock

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import (
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
)
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from lightning_tpauc import PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import AUCM, PAUCI, SONX, SOTA, STACO, CrossEntropy, SOTAs
from lightning_tpauc.errors import ArgumentError, TPAUCWarning
from lightning_tpauc.functional.tpauc import two_way_partial_auroc
from tests.helpers.problems import make_problem, make_trainer
from tests.helpers.tolerances import assert_close
from tests.reference.averages import polynomial_mean

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:.*does not have many workers.*",
        "ignore:.*Checkpoint directory.*",
        "ignore:.*smaller than the logging interval.*",
        "ignore:.*tqdm.*",
        "ignore:.*`val_dataloader`.*",
    ),
]

DIM, STEPS = 5, 8  # 80 negatives by 10: 8 steps an epoch


def make_data(**kwargs):
    x, y = make_problem()
    return PosNegDataModule((x, y), val_dataset=(x[::2], y[::2]), test_dataset=(x, y), num_pos=4, num_neg=10, **kwargs)


def make_module(algorithm=None, lr=0.05, **kwargs):
    torch.manual_seed(0)
    algorithm = algorithm or STACO(0.6, 0.4, alpha=0.3, beta=0.2, beta_prime=0.1)
    return TPAUCModule(nn.Linear(DIM, 1), algorithm, lambda p: torch.optim.SGD(p, lr=lr), **kwargs)


class Watch(Callback):
    """Weights and losses after every step, and what every validation saw."""

    def __init__(self):
        self.weights, self.losses, self.values = [], [], []
        self.validated = []  # (steps taken, weights, val/tpauc)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.weights.append(pl_module.backbone.weight.detach().clone())
        self.losses.append(outputs["loss"].clone())

    def on_validation_epoch_start(self, trainer, pl_module):
        self.during = pl_module.backbone.weight.detach().clone()

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            value = trainer.callback_metrics["val/tpauc"].clone()
            self.validated.append((len(self.weights), self.during, value))


def fit(module=None, data=None, **kwargs):
    """Returns the Trainer and what was watched."""
    watch = Watch()
    callbacks = [watch, *kwargs.pop("callbacks", [])]
    trainer = make_trainer(precision="32-true", callbacks=callbacks, **kwargs)
    trainer.fit(module or make_module(), data or make_data())
    return trainer, watch


def value_of(weight, module, rows=slice(None, None, 2)):
    """``tpauc`` of a weight, from the definition; a bias moves all scores alike."""
    x, y = make_problem()
    return two_way_partial_auroc((x[rows] @ weight[0]), y[rows], module.algorithm.min_tpr, module.algorithm.max_fpr)


# ---------------------------------------------------------------- lengths of a run


@pytest.mark.parametrize(("limit", "steps"), [(3, 3), (0.5, STEPS // 2)])
def test_limit_train_batches_shortens_epochs_and_stages(limit, steps):
    module = make_module(STACO(0.6, 0.4, gamma=5.0))
    trainer, _ = fit(module, max_epochs=2, limit_train_batches=limit)
    assert trainer.global_step == 2 * steps
    assert module.training_state.average.stage == 2, "a stage is an epoch"
    assert module.training_state.average.count == 0


def test_overfit_batches_takes_the_same_batches_again():
    seen = []

    class Batches(Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            seen.append((batch.inputs.clone(), batch.index.clone()))

    fit(max_epochs=3, overfit_batches=2, callbacks=[Batches()])
    assert len(seen) == 6
    for (inputs, index), (again, index_again) in zip(seen, seen[2:], strict=False):
        assert torch.equal(inputs, again)
        assert torch.equal(index, index_again)


# ---------------------------------------------------------------- validation


@pytest.mark.parametrize("gamma", [math.inf, 5.0], ids=["STACO1", "STACO2"])
@pytest.mark.parametrize(
    ("when", "at"),
    [
        ({"val_check_interval": 3}, [3, 6, 11, 14]),
        ({"val_check_interval": 0.25}, [2, 4, 6, 8, 10, 12, 14, 16]),
        ({"val_check_interval": 5, "check_val_every_n_epoch": None}, [5, 10, 15]),
        ({"check_val_every_n_epoch": 2}, [16]),
    ],
    ids=["steps", "share of an epoch", "steps over epochs", "epochs"],
)
def test_validation_sees_the_stages_average_and_disturbs_nothing(gamma, when, at):
    def algorithm():
        return STACO(0.6, 0.4, gamma=gamma, alpha=0.3, beta=0.2, beta_prime=0.1)

    stage = 6
    _, undisturbed = fit(
        make_module(algorithm()),
        max_epochs=2,
        limit_val_batches=0,
        callbacks=[StageCallback(every_n_steps=stage, shrink_rectangle=False)],
    )
    module = make_module(algorithm())
    _, watch = fit(module, max_epochs=2, **when, callbacks=[StageCallback(every_n_steps=stage, shrink_rectangle=False)])
    assert [steps for steps, _, _ in watch.validated] == at
    assert torch.equal(torch.stack(watch.losses), torch.stack(undisturbed.losses))
    for steps, weight, value in watch.validated:
        first = steps - steps % stage if math.isfinite(gamma) else 0
        if first < steps:  # right after a stage's end the stage has no iterate yet; the weights are its start
            mean = polynomial_mean if math.isinf(gamma) else lambda iterates: torch.stack(iterates).mean(0)
            assert_close(weight, mean(watch.weights[first:steps]), "float32")
        assert_close(value, value_of(weight, module), "float32")


def test_plain_loaders_of_pairs_validate_test_and_predict():
    x, y = make_problem()
    plain = DataLoader(TensorDataset(x[::2], y[::2, None]), batch_size=16)
    module = make_module(STACO(0.6, 0.4, dual_init="zeros"), num_positives=24)
    data = make_data(num_dual_neg=10)  # without a Trainer nobody tells it what the algorithm wants
    data.setup("fit")
    trainer = make_trainer(precision="32-true", limit_train_batches=3)
    trainer.fit(module, data.train_dataloader(), plain)
    expected = value_of(module.backbone.weight.detach(), module)
    assert_close(trainer.callback_metrics["val/tpauc"], expected, "float32")
    assert_close(torch.tensor(trainer.test(module, plain, verbose=False)[0]["test/tpauc"]), expected, "float32")
    scores = torch.cat([output["score"] for output in trainer.predict(module, plain)])
    assert_close(scores, module(x[::2]).detach()[:, 0], "float32")


def test_the_exact_start_needs_a_data_module_to_go_through():
    data = make_data()
    data.setup("fit")
    module = make_module(STACO(0.6, 0.4, dual_init="exact"), num_positives=24)
    with pytest.raises(ArgumentError, match=r"train with a PosNegDataModule, or set `dual_init='zeros'`"):
        make_trainer(precision="32-true").fit(module, data.train_dataloader())


# ---------------------------------------------------------------- callbacks


@pytest.mark.filterwarnings("default::lightning_tpauc.errors.TPAUCWarning")
@pytest.mark.parametrize(("check_finite", "epochs"), [(True, 1), (False, 3)])
def test_early_stopping_and_checkpoints_where_validation_lacks_a_class(tmp_path, check_finite, epochs):
    x, y = make_problem()
    data = PosNegDataModule((x, y), val_dataset=(x[y == 0], y[y == 0]), num_pos=4, num_neg=10)
    stopper = EarlyStopping("val/tpauc", mode="max", patience=5, check_finite=check_finite)
    saver = ModelCheckpoint(tmp_path, monitor="val/tpauc", mode="max")
    with pytest.warns(TPAUCWarning, match="no positive example"):
        trainer, _ = fit(data=data, max_epochs=3, callbacks=[stopper, saver], enable_checkpointing=True)
    assert trainer.callback_metrics["val/tpauc"].isnan()
    assert trainer.current_epoch == epochs
    assert saver.best_model_path


# ---------------------------------------------------------------- loggers


def test_curves_in_the_tensorboard_file(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    logger = TensorBoardLogger(tmp_path, default_hp_metric=False)
    module = make_module(lr_scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5))
    _, watch = fit(module, max_epochs=3, logger=logger, log_every_n_steps=4, callbacks=[LearningRateMonitor()])
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    assert {"val/tpauc", "val/auroc", "train/loss", "train/s_prime", "train/mean_y", "lr-SGD"} <= set(
        events.Tags()["scalars"]
    )
    curve = {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert [step for step, _ in curve["val/tpauc"]] == [7, 15, 23]
    assert_close(
        torch.tensor([value for _, value in curve["val/tpauc"]]),
        torch.stack([value for _, _, value in watch.validated]).float(),
        "float32",
    )
    # the step on the axis is that of the step's own batch, counted from 0
    assert [step for step, _ in curve["train/loss"]] == [3, 7, 11, 15, 19, 23]
    for step, value in curve["train/loss"]:
        assert_close(torch.tensor(value), watch.losses[step], "float32")
    assert [value for _, value in curve["lr-SGD"]] == pytest.approx([0.05, 0.025, 0.0125])
    assert len(curve["train/s_prime"]) == 3
    assert_close(torch.tensor(curve["train/s_prime"][-1][1]), module.algorithm.s_prime, "float32")


@pytest.mark.ddp
@pytest.mark.filterwarnings("error:It is recommended to use `self.log", "ignore:.*use of fork.*")
def test_no_advice_to_average_what_all_processes_hold_alike():
    """In a forked process the filter turns the advice into an error; a user's own value still gets it."""

    class Logs(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            pl_module.log("train/mine", 1.0)

    several = {"devices": 2, "strategy": "ddp_fork", "max_epochs": 1, "limit_train_batches": 2}
    make_trainer(precision="32-true", **several).fit(make_module(), make_data())
    with pytest.raises(Exception, match="train/mine"):
        make_trainer(precision="32-true", callbacks=[Logs()], **several).fit(make_module(), make_data())


# ---------------------------------------------------------------- one module, several runs


@pytest.mark.parametrize("gamma", [math.inf, 5.0], ids=["STACO1", "STACO2"])
def test_a_second_fit_starts_from_the_first_ones_solution(gamma):
    module = make_module(STACO(0.6, 0.4, gamma=gamma))
    _, first = fit(module, max_epochs=1)
    solution = module.backbone.weight.detach().clone()
    trainer, second = fit(module, max_epochs=1)
    assert trainer.global_step == STEPS
    assert module.training_state.batches_seen == 2 * STEPS
    moved = (second.weights[0] - solution).abs().max()
    assert moved < (first.weights[-1] - first.weights[0]).abs().max(), "one step from the solution, not from the start"
    if math.isinf(gamma):
        assert_close(module.backbone.weight.detach(), polynomial_mean(second.weights), "float32")


# ---------------------------------------------------------------- no waiting for the device


WAITING = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::nonzero_numpy",
    "aten::masked_select",
    "aten::equal",
    "aten::is_nonzero",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::bincount",
    "aten::repeat_interleave",
}


class NoWaiting(TorchDispatchMode):
    """Refuses operators whose result, or its shape, a host has to wait for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().split(".")[0]
        indices = args[1] if name in ("aten::index", "aten::index_put", "aten::index_put_") else ()
        masked = any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in indices)
        if name in WAITING or masked:
            pytest.fail(f"{name} waits for the device")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def no_waiting():
    def refuse(name):
        def method(self, *args, **kwargs):
            pytest.fail(f"Tensor.{name} waits for the device")

        return method

    names = ("item", "tolist", "numpy", "nonzero", "__bool__", "__float__", "__int__", "__index__")
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(torch.Tensor, name, refuse(name)))
        stack.enter_context(NoWaiting())
        yield


class Careful(TPAUCModule):
    """Trains under the watch of ``no_waiting``."""

    steps = 0

    def training_step(self, batch, batch_idx):
        with no_waiting():
            loss = super().training_step(batch, batch_idx)
        self.steps += 1
        return loss


@pytest.mark.filterwarnings("ignore:PAUCI is made for scores in")
@pytest.mark.parametrize("sizes", [(4, 10), (160, 210)], ids=["dense", "sorted"])
@pytest.mark.parametrize(
    "algorithm",
    [
        STACO(0.6, 0.4),
        STACO(0.6, 0.4, gamma=5.0),
        STACO(0.6, 0.4, surrogate="logistic", share_negatives=True),
        SOTA(0.6, 0.4),
        SOTAs(0.6, 0.4),
        SONX(0.6, 0.4),
        PAUCI(0.6, 0.4),
        AUCM(0.6, 0.4),
        CrossEntropy(0.6, 0.4),
        CrossEntropy(0.6, 0.4, balanced=True),
    ],
    ids=lambda a: f"{type(a).__name__}{'2' if getattr(a, 'gamma', 0) == 5.0 else ''}",
)
def test_a_training_step_never_waits_for_the_device(algorithm, sizes):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, DIM, generator=generator)
    y = (torch.arange(600) % 3 == 0).long()
    module = Careful(
        nn.Linear(DIM, 1),
        algorithm,
        lambda p: torch.optim.SGD(p, lr=0.001),
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1),
        lr_scheduler_interval="step",
        gradient_clip_val=1.0,
    )
    data = PosNegDataModule((x, y), num_pos=sizes[0], num_neg=sizes[1])
    make_trainer(precision="32-true", max_epochs=-1, max_steps=3, callbacks=[StageCallback(every_n_steps=2)]).fit(
        module, data
    )
    assert module.steps == 3
