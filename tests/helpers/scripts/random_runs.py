"""Runs of random settings that are broken off at a random moment, go on from their last checkpoint, and are compared.

``tests/integration/test_random_resume.py`` takes a fixed list of seeds, ``benchmarks/random_resume.py`` as many as one
likes. There a run is broken off by an exception, which takes no process of its own; ``test_kill.py`` kills by SIGKILL.
"""

from __future__ import annotations

import json
import math
import random
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn
from torch.optim import lr_scheduler as lrs
from torch.utils.data import Dataset, TensorDataset

from lightning_tpauc import NegativeStream, PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import AUCM, PAUCI, SONX, SOTA, STACO, Algorithm, CrossEntropy, FullBatch, SOTAs
from lightning_tpauc.errors import TPAUCError, TPAUCWarning
from tests.helpers.flows import Random
from tests.helpers.tensors import flat

DIM, NUM_POS, NUM_NEG = 5, 24, 60

# ---------------------------------------------------------------- what there is to choose from


class Tied(nn.Module):
    """A matrix that is read in both directions, under two names, and a parameter that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder, self.head = nn.Linear(DIM, 4), nn.Linear(DIM, 4), nn.Linear(DIM, 1)
        self.decoder.weight, self.unused = self.encoder.weight, nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.encoder(x) + self.decoder(-x)) @ self.decoder.weight)
        return scores


def frozen() -> nn.Module:
    """Trained only in its second layer."""
    net = nn.Sequential(nn.Linear(DIM, 8), nn.ReLU(), nn.Linear(8, 1))
    net[0].requires_grad_(False)
    return net


NETS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Sequential(nn.Linear(DIM, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1)),
    "batch norm": lambda: nn.Sequential(nn.Linear(DIM, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)),
    "cumulative batch norm": lambda: nn.Sequential(nn.BatchNorm1d(DIM, momentum=None), nn.Linear(DIM, 1)),
    "tied": Tied,
    "frozen": frozen,
}

RECTANGLE: dict[str, Any] = {"min_tpr": 0.6, "max_fpr": 0.4}
PAIRWISE = ("squared_hinge", "hinge", "logistic", "square")
MONOTONE = PAIRWISE[:3]


def staco(rng: random.Random, gamma: float) -> Algorithm:
    """With the exact start only where the surrogate has one."""
    return STACO(
        **RECTANGLE,
        surrogate=rng.choice(MONOTONE),
        alpha=0.3,
        beta=0.2,
        beta_prime=0.1,
        gamma=gamma,
        share_negatives=rng.random() < 0.3,
        dual_init=rng.choice(["exact", "zeros"]),
        stage_restart=rng.choice(["exact", "ones"]),
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
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True, eps=1e-4),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.05, t0=5),
    "groups": lambda p: torch.optim.Adam([{"params": p[:1], "lr": 0.01}, {"params": p[1:]}], lr=0.02, eps=1e-4),
}

SCHEDULERS: dict[str, Callable[[Any], Any] | None] = {
    "none": None,
    "step": lambda o: lrs.StepLR(o, 3, gamma=0.5),
    "lambda": lambda o: lrs.LambdaLR(o, lambda k: 0.95**k),
    "cosine": lambda o: lrs.CosineAnnealingLR(o, 10),
    "cyclic": lambda o: lrs.CyclicLR(o, 0.01, 0.05, step_size_up=3, cycle_momentum=cycles_momentum(o)),
    "sequential": lambda o: lrs.SequentialLR(o, [lrs.ConstantLR(o, 0.1, 3), lrs.ExponentialLR(o, 0.9)], [3]),
    "plateau": lambda o: lrs.ReduceLROnPlateau(o, mode="max", factor=0.8, patience=0, threshold=10.0),
}


def cycles_momentum(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a cyclic schedule has a momentum to change."""
    return bool({"momentum", "betas"} & set(optimizer.defaults))


PRECISIONS = ("32-true", "64-true", "bf16-mixed", "bf16-true", "16-mixed", "16-true")
DATA = ("tensors", "noisy", "stream")
#: Hooks of a Trainer's callback; a run may be broken off whenever one of them is called.
HOOKS = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_batch_start",
    "on_validation_epoch_end",
    "on_validation_end",
    "on_train_epoch_end",
)
SAVED_BY = ("steps", "steps", "epoch", "validation", "exception")


class Setting(NamedTuple):
    """One run; the defaults are 8 steps an epoch, 32 in all, validated after each epoch, killed at step 15."""

    seed: int = 0
    algorithm: str = "STACO2"
    optimizer: str = "Adam"
    scheduler: str = "step"
    interval: str = "epoch"
    precision: str = "32-true"
    net: str = "dropout"
    data: str = "tensors"
    workers: int = 0
    activation: str = "identity"
    clip: float | None = None
    stages: Mapping[str, Any] = MappingProxyType({"every_n_steps": 5})
    trainer: Mapping[str, Any] = MappingProxyType({"max_epochs": 4})
    stops_early: bool = False
    saved_by: str = "steps"
    saved_every: int = 3
    saved_at: str = "on_train_batch_end"
    killed_at: tuple[tuple[str, int], ...] = (("on_train_batch_start", 15),)


def draw(seed: int) -> Setting:
    """The setting of this seed; what can't go together is not drawn."""
    rng = random.Random(seed)  # noqa: S311  # settings, not secrets
    algorithm = rng.choice(list(ALGORITHMS))
    validates = rng.random() < 0.8
    hooks = [h for h in HOOKS if validates or "validation" not in h]
    return Setting(
        seed=seed,
        algorithm=algorithm,
        optimizer=rng.choice(list(OPTIMIZERS)),
        scheduler=rng.choice([name for name in SCHEDULERS if validates or name != "plateau"]),
        interval=rng.choice(["step", "epoch"]),
        precision=rng.choice(PRECISIONS + PRECISIONS[:2] * 3),
        net=rng.choice(list(NETS)),
        data=rng.choice(DATA if algorithm not in ("full batch", "cross-entropy") else DATA[:2]),
        workers=int(rng.random() < 0.1),
        activation=rng.choice(["identity", "sigmoid"]),
        clip=rng.choice([None, None, 0.5]),
        stages=draw_stages(rng),
        trainer=draw_limits(rng, validates, short=algorithm == "full batch"),
        saved_by=rng.choice([name for name in SAVED_BY if validates or name != "validation"]),
        saved_every=rng.choice([1, 2, 3, 5, 7]),
        killed_at=tuple(draw_moment(rng, hooks, short=algorithm == "full batch") for _ in range(rng.choice([1, 1, 2]))),
    )


def draw_moment(rng: random.Random, hooks: list[str], short: bool) -> tuple[str, int]:
    """A hook, and at which of its calls the run is broken off; the last steps, which `max_steps` ends, are spared."""
    hook = rng.choice(hooks)
    by_batch = "batch" in hook or "step" in hook
    return hook, rng.randint(1, (4 if short else 12) if by_batch and "validation" not in hook else 2)


def draw_stages(rng: random.Random) -> dict[str, Any]:
    """Arguments of the stage callback."""
    return {
        "every_n_steps": rng.choice([3, 5, 8]),
        "growth": rng.choice([1.0, 1.5]),
        "averaging": rng.choice(["polynomial", "uniform"]),
        "keep_best": rng.choice([True, False]),
        "shrink_rectangle": rng.choice([True, False]),
        "scores": rng.choice(["remembered", "forward"]),
    }


def draw_limits(rng: random.Random, validates: bool, short: bool) -> dict[str, Any]:
    """What ends the run, its epochs and its validations; an epoch may be as short as one step."""
    steps = {"max_epochs": -1, "max_steps": 7 if short else 19}
    limits: dict[str, Any] = rng.choice(
        [{"max_epochs": 7 if short else 4}, {"max_epochs": 7 if short else 4, "max_steps": 1000}, steps]
    )
    if not short:
        limits = {**limits, "limit_train_batches": rng.choice([1.0, 1.0, 5, 0.5])}
    if not validates:
        return {**limits, "limit_val_batches": 0}
    often: list[dict[str, Any]] = [
        {"val_check_interval": 2},
        {"val_check_interval": 3, "check_val_every_n_epoch": None},
    ]
    given = rng.choice([{}, {}, {"check_val_every_n_epoch": 2}, *([] if short else often)])
    return {**limits, **given, "num_sanity_val_steps": rng.choice([0, 2]), "limit_val_batches": rng.choice([1.0, 1])}


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


class Breaker(Moments):
    """Ends the run; a class of its own, since Lightning tells callbacks apart by it."""


class Curves(Logger):
    """Appends each value to a file at once."""

    name, version = "curves", 0

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        with self.path.open("a") as file:
            for name, value in metrics.items():
                file.write(json.dumps([name, step, float(value).hex()]) + "\n")

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


def curves(folder: Path) -> dict[tuple[str, int], str]:
    """The logged value of each name at each step; where a step was taken twice, the later one."""
    path = folder / "curves.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {(name, step): value for name, step, value in lines}


class Noisy(Dataset[Tensor]):
    """Examples with fresh noise each time they are read."""

    def __init__(self, x: Tensor, targets: Tensor) -> None:
        self.x, self.targets = x, targets

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> Tensor:
        return self.x[row] + 0.1 * torch.randn(DIM)


def state_of(trainer: Trainer) -> dict[str, Tensor]:
    """All that a run leaves, and what of it a checkpoint of its end would keep."""
    module: Any = trainer.lightning_module
    state = module.training_state
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__
    parts = {
        "module": module.state_dict(),
        "algorithm": module.algorithm.state_dict(),
        "training": state.state_dict(),
        "optimizer": trainer.optimizers[0].state_dict(),
        "schedulers": [schedule(config.scheduler) for config in trainer.lr_scheduler_configs],
        "batches": trainer.fit_loop.epoch_loop.batch_progress.total.__dict__,
        "position": [state.batches_seen, trainer.global_step, trainer.current_epoch],
        "steps": trainer.fit_loop.epoch_loop._batches_that_stepped,
        "stopping": [c.state_dict() for c in callbacks if isinstance(c, EarlyStopping)],
        "best": [c.best_model_score for c in callbacks if isinstance(c, ModelCheckpoint)],
        "generators": [torch.get_rng_state(), list(random.getstate()[1]), dict(np.random.get_state(legacy=False))],
    }
    return flat(parts)


def schedule(scheduler: Any) -> Any:
    """A scheduler's state, and that of those inside it."""
    inner = [schedule(one) for one in getattr(scheduler, "_schedulers", ())]
    return [{k: v for k, v in scheduler.state_dict().items() if k != "_schedulers"}, inner]


def make_module(setting: Setting) -> TPAUCModule:
    """The model and its training."""
    rng = random.Random(setting.seed)  # noqa: S311
    torch.manual_seed(setting.seed)
    return TPAUCModule(
        NETS[setting.net](),
        ALGORITHMS[setting.algorithm](rng),
        OPTIMIZERS[setting.optimizer],
        SCHEDULERS[setting.scheduler],
        lr_scheduler_interval=setting.interval,  # type: ignore[arg-type]
        score_activation=setting.activation,  # type: ignore[arg-type]
        gradient_clip_val=setting.clip,
    )


def make_data(setting: Setting) -> PosNegDataModule:
    """Examples of one of the kinds, validated on clean ones."""
    generator = torch.Generator().manual_seed(3)
    y = torch.zeros(NUM_POS + NUM_NEG, dtype=torch.int64)
    y[torch.randperm(len(y), generator=generator)[:NUM_POS]] = 1
    x = torch.randn(len(y), DIM, generator=generator) + 0.5 * y[:, None]
    sizes: dict[str, Any] = {"num_pos": 4, "num_neg": 8, "batch_size": 16, "num_workers": setting.workers}
    val = TensorDataset(x[:40], y[:40])
    if setting.data == "stream":
        negatives = NegativeStream(Random(dim=DIM), num_scored=40)
        return PosNegDataModule(x[y == 1], val, negatives=negatives, steps_per_epoch=8, seed=setting.seed, **sizes)
    train: Any = (x, y) if setting.data == "tensors" else Noisy(x, y)
    return PosNegDataModule(train, val, seed=setting.seed, **sizes)


def saver(setting: Setting, folder: Path) -> Callback:
    """What writes checkpoints, all as ``last.ckpt``; ``"hook"`` is a callback of the user's own."""
    how: dict[str, dict[str, Any]] = {
        "steps": {"every_n_train_steps": setting.saved_every},
        "epoch": {"save_on_train_epoch_end": True},
        "validation": {"monitor": "val/tpauc", "mode": "max"},
    }
    if setting.saved_by in how:
        return ModelCheckpoint(folder, save_last=True, **how[setting.saved_by])
    if setting.saved_by == "exception":
        return OnExceptionCheckpoint(folder, "last")
    path = folder / "last.ckpt"
    return Moments(setting.saved_at, setting.saved_every, lambda t: t.save_checkpoint(path), again=True)


def precision(setting: Setting) -> dict[str, Any]:
    """Lightning would turn 16-mixed into bf16-mixed on a CPU."""
    if setting.precision != "16-mixed":
        return {"precision": setting.precision}
    return {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))]}


def break_off(trainer: Trainer) -> None:
    """Ends a run without a process of its own."""
    raise BrokenOffError


def run(
    folder: Path,
    setting: Setting,
    killed_at: tuple[str, int] | None = None,
    kill: Callable[[Trainer], None] = break_off,
) -> dict[str, Tensor] | None:
    """Start the run, or go on with it; what it ends with, or ``None`` if it was broken off."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "last.ckpt"
    resumes = checkpoint.exists()
    callbacks: list[Callback] = [StageCallback(**setting.stages)]
    if setting.scheduler != "none":
        callbacks.append(LearningRateMonitor())
    if setting.stops_early:
        callbacks.append(EarlyStopping("val/auroc", mode="max", patience=1))
    trainer = Trainer(
        accelerator="cpu",
        callbacks=[*callbacks, *([Breaker(*killed_at, kill)] if killed_at else []), saver(setting, folder)],
        logger=Curves(folder / "curves.jsonl"),
        log_every_n_steps=2,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=setting.saved_by != "hook",
        **precision(setting),
        **setting.trainer,
    )
    module, data = make_module(setting), make_data(setting)
    luck = 2000 if resumes else 1000  # generators that nobody restores would differ
    torch.manual_seed(luck)
    random.seed(luck)
    np.random.seed(luck)
    try:
        trainer.fit(module, data, ckpt_path=str(checkpoint) if resumes else None)
    except BrokenOffError:
        return None
    return state_of(trainer)


# ---------------------------------------------------------------- the comparison


class Outcome(NamedTuple):
    """What came of a setting: ``equal``, ``differs``, ``inexact`` (and says so) or ``refused``, and why.

    ``resumed`` says whether it was broken off and there was a checkpoint to go on from.
    """

    kind: str
    why: list[str]
    resumed: bool = False


def compare(setting: Setting, folder: Path) -> Outcome:
    """Run it once straight and once with breaks, and say how they end."""
    broken, lost = folder / "broken", set()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            unbroken = run(folder / "unbroken", setting)
        except TPAUCError as error:
            return Outcome("refused", [str(error)])
        for killed_at in setting.killed_at:
            if run(broken, setting, killed_at) is not None:
                return Outcome("equal", [])  # it was over before
            lost |= lost_points(broken)
        had_checkpoint = (broken / "last.ckpt").exists()
        resumed = run(broken, setting)
    assert unbroken is not None
    assert resumed is not None
    said = [str(w.message) for w in caught if issubclass(w.category, TPAUCWarning)]
    inexact = [text for text in said if "starts over" in text or "amid a training step" in text]
    found = differences(unbroken, resumed, folder / "unbroken", broken, lost)
    if found:
        return Outcome("inexact" if inexact else "differs", [*inexact, *found], had_checkpoint)
    return Outcome("equal", [], had_checkpoint)


def lost_points(folder: Path) -> set[int]:
    """The step of the last checkpoint: what is logged for it may come after the kill."""
    path = folder / "last.ckpt"
    return {torch.load(path, weights_only=True)["global_step"] - 1} if path.exists() else set()


def differences(
    unbroken: dict[str, Tensor], resumed: dict[str, Tensor], straight: Path, broken: Path, lost: set[int]
) -> list[str]:
    """What two runs ended with, and logged, that is not the same to the last bit."""
    found = [k for k in unbroken if k not in resumed or not same(unbroken[k], resumed[k])]
    found += sorted(resumed.keys() - unbroken.keys())
    logged, expected = curves(broken), curves(straight)
    keys = sorted(logged.keys() | expected.keys(), key=lambda key: (key[1], key[0]))
    keys = [key for key in keys if key in logged or key[1] not in lost]
    return found + [
        f"{name} at {step}" for name, step in keys if logged.get((name, step)) != expected.get((name, step))
    ]


def same(a: Tensor, b: Tensor) -> bool:
    """Equal in kind and to the last bit; nan equals nan."""
    return a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(a.nan_to_num(7.25), b.nan_to_num(7.25)))
