"""Runs of random settings that are broken off at a random moment, go on from their last checkpoint, and are compared.

``tests/integration/test_random_resume.py`` takes a fixed list of seeds, ``benchmarks/random_resume.py`` as many as one
likes. A run is broken off by an exception, which takes no process of its own; ``survive.py`` kills with SIGKILL.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import (
    Checkpoint,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    OnExceptionCheckpoint,
)
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.optim import lr_scheduler as lrs
from torch.utils.data import IterableDataset, TensorDataset

from lightning_tpauc import NegativeStream, PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import AUCM, PAUCI, SONX, SOTA, STACO, Algorithm, CrossEntropy, FullBatch, SOTAs
from lightning_tpauc.errors import TPAUCError, TPAUCWarning
from tests.helpers.flows import Random
from tests.helpers.scripts.survive import DIM, NUM_NEG, NUM_POS, Curves, Noisy, curves
from tests.helpers.tensors import flat

# ---------------------------------------------------------------- what there is to choose from


class Tied(nn.Module):
    """A matrix that is read in both directions, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.head = nn.Linear(DIM, 4), nn.Linear(DIM, 4), nn.Linear(DIM, 1)
        self.decoder.weight = self.encoder.weight

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.encoder(x) + self.decoder(-x)) @ self.decoder.weight)
        return scores


class Shared(nn.Module):
    """One layer under two names, batch normalisation among it, and a parameter that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = nn.Sequential(nn.Linear(DIM, DIM), nn.BatchNorm1d(DIM), nn.Tanh())
        self.head, self.unused = nn.Linear(DIM, 1), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.second(self.first(x)))
        return scores


def frozen() -> nn.Module:
    """Trained only in its second layer."""
    net = nn.Sequential(nn.Linear(DIM, 8), nn.ReLU(), nn.Linear(8, 1))
    net[0].requires_grad_(False)
    return net


def lazy() -> nn.Module:
    """Takes its size from the first input, as one does before the optimizer is made."""
    net = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(1))
    net.eval()(torch.zeros(2, DIM))
    return net.train()


NETS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(DIM, 1),
    "dropout": lambda: nn.Sequential(nn.Linear(DIM, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1)),
    "batch norm": lambda: nn.Sequential(nn.Linear(DIM, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)),
    "cumulative batch norm": lambda: nn.Sequential(nn.BatchNorm1d(DIM, momentum=None), nn.Linear(DIM, 1)),
    "tied": Tied,
    "shared": Shared,
    "frozen": frozen,
    "lazy": lazy,
}

RECTANGLE: dict[str, Any] = {"min_tpr": 0.6, "max_fpr": 0.4}
PAIRWISE = ("squared_hinge", "hinge", "logistic", "square")
MONOTONE = PAIRWISE[:3]


def staco(rng: random.Random, gamma: float) -> Algorithm:
    """With the exact start only where the surrogate has one."""
    exact = {"dual_init": rng.choice(["exact", "zeros"]), "stage_restart": rng.choice(["exact", "ones"])}
    return STACO(
        **RECTANGLE,
        surrogate=rng.choice(MONOTONE),
        alpha=0.3,
        beta=0.2,
        beta_prime=0.1,
        gamma=gamma,
        share_negatives=rng.random() < 0.3,
        **exact,  # type: ignore[arg-type]
    )


ALGORITHMS: dict[str, Callable[[random.Random], Algorithm]] = {
    "STACO1": lambda rng: staco(rng, math.inf),
    "STACO2": lambda rng: staco(rng, 4.0),
    "tracked": lambda rng: STACO(
        **RECTANGLE, surrogate=rng.choice(MONOTONE), gamma=rng.choice([math.inf, 4.0]), duals="tracked"
    ),
    "SOTA": lambda rng: SOTA(**RECTANGLE, surrogate=rng.choice(MONOTONE), gamma=rng.choice([4.0, 500.0])),
    "SOTAs": lambda rng: SOTAs(**RECTANGLE, surrogate=rng.choice(PAIRWISE)),
    "SONX": lambda rng: SONX(**RECTANGLE, surrogate=rng.choice(MONOTONE), gamma=rng.choice([0.0, 0.1])),
    "PAUCI": lambda rng: PAUCI(**RECTANGLE),
    "AUCM": lambda rng: AUCM(**RECTANGLE, gamma=4.0),
    "AUCM without stages": lambda rng: AUCM(**RECTANGLE, gamma=math.inf),
    "cross-entropy": lambda rng: CrossEntropy(balanced=rng.random() < 0.5),
    "full batch": lambda rng: FullBatch(**RECTANGLE, surrogate=rng.choice(PAIRWISE)),
}

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.02, eps=1e-4),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.02, amsgrad=True, eps=1e-4),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.02, eps=1e-4),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.02, eps=1e-4),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True, eps=1e-4),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.02, eps=1e-4),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.05, t0=5),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.02),
    "groups": lambda p: torch.optim.Adam([{"params": p[:1], "lr": 0.01}, {"params": p[1:]}], lr=0.02, eps=1e-4),
}

SCHEDULERS: dict[str, Callable[[Any], Any] | None] = {
    "none": None,
    "step": lambda o: lrs.StepLR(o, 3, gamma=0.5),
    "exponential": lambda o: lrs.ExponentialLR(o, 0.9),
    "multi-step": lambda o: lrs.MultiStepLR(o, [3, 3, 9], gamma=0.5),
    "lambda": lambda o: lrs.LambdaLR(o, lambda k: 0.95**k),
    "cosine": lambda o: lrs.CosineAnnealingLR(o, 10),
    "warm restarts": lambda o: lrs.CosineAnnealingWarmRestarts(o, 5),
    "one cycle": lambda o: lrs.OneCycleLR(o, 0.05, total_steps=200, cycle_momentum=cycles_momentum(o)),
    "cyclic": lambda o: lrs.CyclicLR(o, 0.01, 0.05, step_size_up=3, cycle_momentum=cycles_momentum(o)),
    "chained": lambda o: lrs.ChainedScheduler([lrs.LinearLR(o, 0.5, total_iters=4), lrs.ExponentialLR(o, 0.9)]),
    "sequential": lambda o: lrs.SequentialLR(o, [lrs.ConstantLR(o, 0.1, 3), lrs.ExponentialLR(o, 0.9)], [3]),
    "plateau": lambda o: lrs.ReduceLROnPlateau(o, mode="max", factor=0.8, patience=0, threshold=10.0),
}


def cycles_momentum(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a cyclic schedule has a momentum to change."""
    return bool({"momentum", "betas"} & set(optimizer.defaults))


PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true")
DATA = ("tensors", "numpy", "noisy", "stream", "resumed stream")

#: Hooks of a Trainer's callback; a run may be saved, or broken off, whenever one of them is called.
HOOKS = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_validation_epoch_end",
    "on_validation_end",
    "on_train_epoch_end",
    "on_train_end",
    "on_fit_end",
)
SAVED_BY = ("steps", "steps", "epoch", "validation", "validation or epoch", "exception", "hook")
#: Who asks for a checkpoint at a hook: a Lightning ``Checkpoint``, which is called last, another callback before or
#: after the others, or the module's own class.
SAVERS = ("checkpoint", "first callback", "last callback", "module")
#: Hooks at which a Trainer is asked for a checkpoint; amid a step it says that it is not exact.
SAVED_AT = (
    "on_train_start",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_train_epoch_start",
    "on_validation_start",
    "on_validation_epoch_start",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_validation_epoch_end",
    "on_validation_end",
    "on_train_epoch_end",
    "on_train_end",
    "on_fit_end",
)


class Setting(NamedTuple):
    """One random run."""

    seed: int
    algorithm: str
    optimizer: str
    scheduler: str
    interval: str
    precision: str
    net: str
    data: str
    workers: int
    activation: str
    clip: float | None
    stages: dict[str, Any]
    trainer: dict[str, Any]
    stops_early: bool
    saved_by: str
    saved_every: int
    saved_at: str
    killed_at: tuple[tuple[str, int], ...]
    saver: str = "checkpoint"
    watched: bool = False

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._asdict().items())


def draw(seed: int) -> Setting:
    """The setting of this seed; what can't go together is not drawn."""
    rng = random.Random(seed)  # noqa: S311  # settings, not secrets
    algorithm = rng.choice(list(ALGORITHMS))
    streams = DATA if algorithm not in ("full batch", "cross-entropy") else DATA[:3]
    precision = rng.choice(PRECISIONS + PRECISIONS[:2] * 3)
    validates = rng.random() < 0.8
    scheduler = rng.choice([name for name in SCHEDULERS if validates or name != "plateau"])
    saved_by = rng.choice([name for name in SAVED_BY if validates or not name.startswith("validation")])
    hooks = [h for h in HOOKS if validates or "validation" not in h]
    data = rng.choice(streams)
    by_hook = random.Random(f"{seed} saver")  # noqa: S311
    return Setting(
        seed=seed,
        algorithm=algorithm,
        optimizer=rng.choice(list(OPTIMIZERS)),
        scheduler=scheduler,
        interval=rng.choice(["step", "epoch"]),
        precision=precision,
        net=rng.choice(list(NETS)),
        data=data,
        # what a worker has read ahead, when an epoch is cut short, is gone in a stream that can't be put back
        workers=int(rng.random() < 0.1 and data != "resumed stream"),
        activation=rng.choice(["identity", "sigmoid"]),
        clip=rng.choice([None, None, 0.5]),
        stages=draw_stages(rng),
        trainer=draw_limits(rng, validates) if algorithm != "full batch" else draw_short(rng, validates),
        stops_early=validates and rng.random() < 0.2,
        saved_by=saved_by,
        saved_every=rng.choice([1, 2, 3, 5, 7]) if saved_by != "hook" else rng.choice([1, 2, 4, 7]),
        saved_at=by_hook.choice([h for h in SAVED_AT if validates or "validation" not in h]),
        killed_at=tuple((rng.choice(hooks), rng.randint(1, 9)) for _ in range(rng.choice([1, 1, 2]))),
        saver=by_hook.choice(SAVERS),
        watched=saved_by == "hook" and validates and by_hook.random() < 0.3,
    )


def draw_stages(rng: random.Random) -> dict[str, Any]:
    """Arguments of the stage callback."""
    return {
        "every_n_steps": rng.choice([3, 5, 8]),
        "growth": rng.choice([1.0, 1.5]),
        "averaging": rng.choice(["polynomial", "uniform"]),
        "keep_best": rng.choice([True, False]),
        "shrink_rectangle": rng.choice([True, False]),
        "scores": rng.choice(["remembered", "forward"]),
        "batch_norm": rng.choice(["average", "average", "keep", "recompute"]),
    }


def draw_limits(rng: random.Random, validates: bool) -> dict[str, Any]:
    """What ends the run, its epochs and its validations."""
    limits = rng.choice([{"max_epochs": 4}, {"max_epochs": 4, "max_steps": 1000}, {"max_epochs": -1, "max_steps": 19}])
    given: dict[str, Any] = {**limits, "limit_train_batches": rng.choice([1.0, 1.0, 5, 0.5])}
    if not validates:
        return {**given, "limit_val_batches": 0}
    given |= rng.choice(
        [
            {},
            {},
            {"check_val_every_n_epoch": 2},
            {"val_check_interval": 2},
            {"val_check_interval": 0.5},
            {"val_check_interval": 3, "check_val_every_n_epoch": None},
            {"val_check_interval": 11, "check_val_every_n_epoch": None},
        ]
    )
    return {**given, "num_sanity_val_steps": rng.choice([0, 2]), "limit_val_batches": rng.choice([1.0, 1.0, 1])}


def draw_short(rng: random.Random, validates: bool) -> dict[str, Any]:
    """The same where an epoch is one step."""
    limits = rng.choice([{"max_epochs": 7}, {"max_epochs": 7, "max_steps": 1000}, {"max_epochs": -1, "max_steps": 7}])
    further = rng.choice([{}, {"check_val_every_n_epoch": 2}]) if validates else {"limit_val_batches": 0}
    return {**limits, **further}


# ---------------------------------------------------------------- a run


class BrokenOffError(BaseException):
    """Stands for what ends a process; nobody catches it."""


class Moments(Callback):
    """Does something the n-th time that a hook is called, or every n-th time; the sanity check does not count."""

    def __init__(self, hook: str, number: int, act: Callable[[Trainer], None], again: bool = False) -> None:
        self.number, self.act, self.again, self.count = number, act, again, 0
        setattr(self, hook, self._called)

    def _called(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        self.count += not trainer.sanity_checking
        due = self.count % self.number == 0 if self.again else self.count == self.number
        if due and not trainer.sanity_checking:
            self.act(trainer)


class Saver(Moments, Checkpoint):
    """Asks the Trainer for a checkpoint; Lightning calls it after the other callbacks."""


class OwnSaver(Moments):
    """The same by a callback that Lightning knows nothing about, and calls where it stands in the list."""


class Breaker(Moments):
    """Ends the run."""


def state_of(trainer: Trainer) -> dict[str, Tensor]:
    """All that a run leaves, and what of it a checkpoint of its end would keep."""
    module: Any = trainer.lightning_module
    stopping = [c.state_dict() for c in trainer.callbacks if isinstance(c, EarlyStopping)]  # type: ignore[attr-defined]
    best = [c.best_model_score for c in trainer.callbacks if isinstance(c, ModelCheckpoint)]  # type: ignore[attr-defined]
    parts = {
        "module": module.state_dict(),
        "algorithm": module.algorithm.state_dict(),
        "iterates": module.training_state.average.state_dict(),
        "memory": module.training_state.memory.state_dict() if module.training_state.memory is not None else None,
        "previous": module.training_state.previous.state_dict(),
        "optimizer": trainer.optimizers[0].state_dict(),
        "schedulers": [schedule(config.scheduler) for config in trainer.lr_scheduler_configs],
        "batches": trainer.fit_loop.epoch_loop.batch_progress.total.__dict__,
        "position": [module.training_state.batches_seen, trainer.global_step, trainer.current_epoch],
        "steps": trainer.fit_loop.epoch_loop._batches_that_stepped,
        "stopping": stopping,
        "best": best,
        "generators": [torch.get_rng_state(), list(random.getstate()[1]), dict(np.random.get_state(legacy=False))],
    }
    return flat(parts)


def schedule(scheduler: Any) -> Any:
    """A scheduler's state, and that of those inside it."""
    inner = [schedule(one) for one in getattr(scheduler, "_schedulers", ())]
    return [{k: v for k, v in scheduler.state_dict().items() if k != "_schedulers"}, inner]


def saving_module(hook: str, number: int, path: Path) -> type[TPAUCModule]:
    """A subclass that asks the Trainer for a checkpoint in a hook of its own, every n-th time."""

    def act(self: TPAUCModule, *args: Any) -> Any:
        if not self.trainer.sanity_checking:
            self.asked = getattr(self, "asked", 0) + 1
            if self.asked % number == 0:
                self.trainer.save_checkpoint(path)
        return getattr(super(Saving, self), hook)(*args)

    Saving: type[TPAUCModule] = type("Saving", (TPAUCModule,), {hook: act})
    return Saving


def make_module(setting: Setting, kind: type[TPAUCModule] = TPAUCModule) -> TPAUCModule:
    """The model and its training."""
    rng = random.Random(setting.seed)  # noqa: S311
    torch.manual_seed(setting.seed)
    return kind(
        NETS[setting.net](),
        ALGORITHMS[setting.algorithm](rng),
        OPTIMIZERS[setting.optimizer],
        SCHEDULERS[setting.scheduler],
        lr_scheduler_interval=setting.interval,  # type: ignore[arg-type]
        score_activation=setting.activation,  # type: ignore[arg-type]
        gradient_clip_val=setting.clip,
    )


class Unmovable(IterableDataset[Tensor]):
    """A stream that can't be put where it stood, and begins anew each time."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(Random(dim=DIM))


def make_data(setting: Setting) -> PosNegDataModule:
    """Examples of one of the kinds, validated on clean ones."""
    generator = torch.Generator().manual_seed(3)
    y = torch.zeros(NUM_POS + NUM_NEG, dtype=torch.int64)
    y[torch.randperm(len(y), generator=generator)[:NUM_POS]] = 1
    x = torch.randn(len(y), DIM, generator=generator) + 0.5 * y[:, None]
    sizes = {"num_pos": 4, "num_neg": 8, "batch_size": 16, "num_workers": setting.workers, "seed": setting.seed}
    val = TensorDataset(x[:40], y[:40])
    if "stream" not in setting.data:
        train = {"tensors": (x, y), "numpy": (x.numpy(), y.numpy()), "noisy": Noisy(x, y)}[setting.data]
        return PosNegDataModule(train, val, **sizes)  # type: ignore[arg-type]
    negatives = NegativeStream(Random(dim=DIM), num_scored=40)
    return PosNegDataModule(x[y == 1], val, negatives=negatives, steps_per_epoch=8, **sizes)  # type: ignore[arg-type]


def savers(setting: Setting, folder: Path) -> list[Callback]:
    """What writes checkpoints, all as ``last.ckpt``."""
    how: dict[str, dict[str, Any]] = {
        "steps": {"every_n_train_steps": setting.saved_every},
        "epoch": {"save_on_train_epoch_end": True},
        "validation": {"monitor": "val/tpauc", "mode": "max"},
        "validation or epoch": {"monitor": "val/tpauc", "mode": "max", "save_on_train_epoch_end": True},
    }
    if setting.saved_by in how:
        return [ModelCheckpoint(folder, save_last=True, **how[setting.saved_by])]
    if setting.saved_by == "exception":
        return [OnExceptionCheckpoint(folder, "last")]
    if setting.saver == "module":
        return []
    path, kind = folder / "last.ckpt", Saver if setting.saver == "checkpoint" else OwnSaver
    return [kind(setting.saved_at, setting.saved_every, lambda t: t.save_checkpoint(path), again=True)]


def precision(setting: Setting) -> dict[str, Any]:
    """Lightning would turn 16-mixed into bf16-mixed on a CPU."""
    if setting.precision != "16-mixed":
        return {"precision": setting.precision}
    return {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))]}


def run(folder: Path, setting: Setting, killed_at: tuple[str, int] | None = None) -> dict[str, Tensor] | None:
    """Start the run, or go on with it; what it ends with, or ``None`` if it was broken off."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "last.ckpt"
    resumes = checkpoint.exists()
    callbacks: list[Callback] = [StageCallback(**setting.stages)]
    if setting.scheduler != "none":
        callbacks.append(LearningRateMonitor())
    if setting.stops_early:
        callbacks.append(EarlyStopping("val/auroc", mode="max", patience=1))
    before = random.Random(setting.seed).random() < 0.5  # noqa: S311  # whether it ends before or after it saves
    breaker = [Breaker(*killed_at, _break_off)] if killed_at is not None else []
    saving = savers(setting, folder)
    if saving and setting.saver == "first callback":
        callbacks = [*saving, *callbacks, *breaker]
    else:
        callbacks += [*breaker, *saving] if before else [*saving, *breaker]
    if setting.watched:
        callbacks.append(ModelCheckpoint(folder / "best", monitor="val/auroc", mode="max"))
    trainer = Trainer(
        accelerator="cpu",
        callbacks=callbacks,
        logger=Curves(folder / "curves.jsonl"),
        log_every_n_steps=2,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=any(isinstance(c, Checkpoint) for c in callbacks),
        **precision(setting),
        **setting.trainer,
    )
    own = setting.saved_by == "hook" and setting.saver == "module"
    kind = saving_module(setting.saved_at, setting.saved_every, checkpoint) if own else TPAUCModule
    module, data = make_module(setting, kind), make_data(setting)
    luck = 2000 if resumes else 1000  # generators that nobody restores would differ
    torch.manual_seed(luck)
    random.seed(luck)
    np.random.seed(luck)
    try:
        trainer.fit(module, data, ckpt_path=str(checkpoint) if resumes else None)
    except BrokenOffError:
        return None
    return state_of(trainer)


def _break_off(trainer: Trainer) -> None:
    raise BrokenOffError


# ---------------------------------------------------------------- the comparison


class Outcome(NamedTuple):
    """What came of a setting: ``equal``, ``differs``, ``inexact`` (and says so) or ``refused``, and why.

    ``resumed`` says whether there was a checkpoint to go on from; a run that breaks off before begins anew.
    """

    kind: str
    why: list[str]
    resumed: bool = False


def compare(setting: Setting, folder: Path) -> Outcome:
    """Run it once straight and once with breaks, and say how they end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            unbroken = run(folder / "unbroken", setting)
        except TPAUCError as error:
            return Outcome("refused", [str(error)])
        broken = folder / "broken"
        last, lost = broken / "last.ckpt", set()
        for killed_at in setting.killed_at:
            if run(broken, setting, killed_at) is not None:
                break
            if last.exists():  # what is logged for the step in which it was saved may come after the kill
                lost.add(torch.load(last, weights_only=True)["global_step"] - 1)
        had_checkpoint = last.exists()
        resumed = run(broken, setting)
    assert unbroken is not None
    assert resumed is not None
    said = [str(w.message) for w in caught if issubclass(w.category, TPAUCWarning)]
    inexact = [text for text in said if "starts over" in text or "amid a training step" in text]
    found = [k for k in unbroken if k not in resumed or not same(unbroken[k], resumed[k])]
    found += sorted(resumed.keys() - unbroken.keys())
    logged, expected = curves(broken), curves(folder / "unbroken")
    keys = sorted(logged.keys() | expected.keys(), key=lambda key: (key[1], key[0]))
    keys = [key for key in keys if key in logged or key[1] not in lost]
    found += [f"{name} at {step}" for name, step in keys if logged.get((name, step)) != expected.get((name, step))]
    if found:
        return Outcome("inexact" if inexact else "differs", [*inexact, *found], had_checkpoint)
    return Outcome("equal", [], had_checkpoint)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal in kind and to the last bit; nan equals nan."""
    return a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(a.nan_to_num(7.25), b.nan_to_num(7.25)))
