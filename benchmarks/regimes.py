"""Where does training for the rectangle win? One set of defaults on many kinds of data, against tuned baselines.

Rare positives beside decoys (negatives that share their easy shift), letters one by one, linear models on data that are
not linear, wrong labels, few positives. STACO runs untuned. Cross-entropy runs plain and class-balanced, each as it is
and with the average of its weights that STACO takes, at five learning rates of Adam and three of `DampedAdam`; focal
loss, logit adjustment, PAUCI and SOTA-s at three rates. All start from the same weights, take as many steps of as many
examples, and are validated at the same 16 moments; the weights that validated best are kept. A baseline's value is that
of its rate that validated best, in each repetition. Test values choose nothing.

The cross-entropies of all rates train side by side in one stack of networks, which is tested to be what one by one
gives. Each training is written to a file once it is over, so that a run that is killed goes on where it was:

    python -m benchmarks.regimes --file regimes.jsonl --seeds 5
    python -m benchmarks.regimes --file regimes.jsonl --seeds 5 --sets "decoys*;letter ?" --methods "PAUCI;SOTA-s"
    python -m benchmarks.regimes --file s --seeds 1 --sets "letter ?" --steps 150 --methods "STACO;STACO, long warm-up"
    python -m benchmarks.regimes --file regimes.jsonl --only-table 1 --pack benchmarks/results/regimes.csv.gz
    python -m benchmarks.regimes --file benchmarks/results/regimes.csv.gz --only-table 1 --plot docs/images/regimes.png
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from functools import cache, lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from scipy import stats
from sklearn.datasets import load_svmlight_file
from torch import Tensor, nn
from torch.nn.functional import softplus

from benchmarks.common import arguments, bare_trainer, data_folder, quiet
from lightning_tpauc import DampedAdam, PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import PAUCI, STACO, Algorithm, SOTAs
from lightning_tpauc.errors import NonFiniteError
from lightning_tpauc.functional import two_way_partial_auroc

Rectangle = tuple[float, float]
Part = tuple[Tensor, Tensor]
LOOKS = 16


class Problem(NamedTuple):
    """Data, network, rectangle and length.

    Attributes:
        data: makes the training, validation and test part of a seed.
        hidden: widths of the hidden layers.
        rectangle: (min_tpr, max_fpr).
        steps: of 256 examples.
    """

    data: Callable[[int], tuple[Part, Part, Part]]
    hidden: tuple[int, ...]
    rectangle: Rectangle
    steps: int


# ------------------------------------------------------------------------------------------------------------- data


def decoys(seed: int, *, per_positive: float, cue: str = "product", share: float = 0.0015, rows: int = 150_000) -> Any:
    """Rare positives, and decoys that share their shift and differ from them by a cue.

    Of 16 standard normal inputs, four are higher by 2 in positives and decoys. ``"product"``: two others, both further
    from 0 by 0.5, have equal signs in positives and unequal ones in decoys. ``"linear"``: another input is higher by 1
    in positives and lower by 1 in decoys.
    """
    rng = np.random.default_rng(seed)

    def draw(count: int) -> Part:
        x = rng.standard_normal((count, 16)).astype(np.float32)
        kind = np.zeros(count, dtype=np.int64)  # 0 the crowd, 1 positives, 2 decoys
        positives = round(share * count)
        kind[:positives] = 1
        kind[positives : positives + round(per_positive * positives)] = 2
        x[kind > 0, :4] += 2.0
        sign = np.where(kind == 1, 1.0, -1.0)[kind > 0]
        if cue == "product":
            x[kind > 0, 4:6] += 0.5 * np.sign(x[kind > 0, 4:6])
            x[kind > 0, 5] = sign * np.sign(x[kind > 0, 4]) * np.abs(x[kind > 0, 5])
        else:
            x[kind > 0, 4] += sign
        order = rng.permutation(count)
        return torch.from_numpy(x[order]), torch.from_numpy((kind[order] == 1).astype(np.int64))

    x, y = draw(rows)
    cut = rows // 4
    return (x[cut:], y[cut:]), (x[:cut], y[:cut]), draw(rows)


@cache
def letters() -> tuple[np.ndarray, np.ndarray]:
    """The 16 numbers of each letter, and the letters."""
    table = np.loadtxt(data_folder() / "letter" / "letter.csv.gz", delimiter=",", skiprows=1, dtype=str)
    return table[:, :16].astype(np.float32), table[:, 16]


def letter(seed: int, *, which: str, wrong: float = 0.0) -> Any:
    """One letter against the others: 60% to train on, 20% to validate on, 20% to test on.

    A share ``wrong`` of the positives that train and validate are called negative, and as many negatives positive.
    """
    x, names = letters()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(x))
    y = (names == which).astype(np.int64)[order]
    x = x[order]
    first, second = int(0.6 * len(x)), int(0.8 * len(x))
    x = (x - x[:first].mean(0)) / x[:first].std(0)
    parts = []
    for part in (slice(0, first), slice(first, second), slice(second, None)):
        target = y[part].copy()
        if wrong and part.stop is not None:
            for label in (1, 0):
                rows = np.flatnonzero(y[part] == label)
                target[rng.choice(rows, round(wrong * int(y[part].sum())), replace=False)] = 1 - label
        parts.append((torch.from_numpy(x[part]), torch.from_numpy(target)))
    return tuple(parts)


@cache
def libsvm(name: str, train: str, test: str, width: int) -> list[Part]:
    """A table in LIBSVM's format, standardised by its training file."""
    read = [load_svmlight_file(str(data_folder() / name / file), n_features=width) for file in (train, test)]
    dense = [(x.toarray().astype(np.float32), (y > 0).astype(np.int64)) for x, y in read]
    mean, std = dense[0][0].mean(0), dense[0][0].std(0)
    std[std == 0] = 1.0
    return [(torch.from_numpy((x - mean) / std), torch.from_numpy(y)) for x, y in dense]


def table(seed: int, *, files: tuple[str, str, str, int], positives: int = 0, negatives: int = 0) -> Any:
    """Three quarters of a training file train, one validates; of ``positives`` and ``negatives`` if they are given."""
    (x, y), test = libsvm(*files)
    generator = torch.Generator().manual_seed(seed)
    train, val = [], []
    for label, count in ((1, positives), (0, negatives)):
        rows = (y == label).nonzero().squeeze(1)
        rows = rows[torch.randperm(len(rows), generator=generator)][: count or None]
        train.append(rows[len(rows) // 4 :])
        val.append(rows[: len(rows) // 4])
    return *((x[rows], y[rows]) for rows in (torch.cat(train), torch.cat(val))), test


IJCNN1 = partial(table, files=("ijcnn1", "ijcnn1.bz2", "ijcnn1.t.bz2", 22))
ADULT = partial(table, files=("adult", "adult.trn.bz2", "adult.tst.bz2", 123))
NAMES = [chr(ord("A") + k) for k in range(26)]
WIDE = (64, 64)
CORNER: Rectangle = (0.3, 0.005)
PROBLEMS: dict[str, Problem] = {
    **{f"decoys {k}": Problem(partial(decoys, per_positive=k), WIDE, CORNER, 555) for k in (8, 0, 2, 20)},
    **{f"letter {c}": Problem(partial(letter, which=c), WIDE, (0.8, 0.05), 800) for c in NAMES},
    "ijcnn1, linear, (.5, .5)": Problem(IJCNN1, (), (0.5, 0.5), 1000),
    "ijcnn1, linear, (.8, .2)": Problem(IJCNN1, (), (0.8, 0.2), 1000),
    "adult, linear, (.7, .3)": Problem(ADULT, (), (0.7, 0.3), 1000),
    **{f"letter {c}, linear": Problem(partial(letter, which=c), (), (0.5, 0.3), 800) for c in NAMES},
    "adult, 160 positives": Problem(partial(ADULT, positives=213, negatives=5333), WIDE, (0.5, 0.5), 1000),
    **{
        f"letter {c}, wrong labels": Problem(partial(letter, which=c, wrong=0.2), WIDE, (0.8, 0.05), 800)
        for c in "BEHKRS"
    },
    **{
        f"letter {c}, wrong labels, TPR .3": Problem(partial(letter, which=c, wrong=0.2), WIDE, (0.3, 0.05), 800)
        for c in "BEHKRS"
    },
    "decoys 8, linear cue": Problem(partial(decoys, per_positive=8, cue="linear"), WIDE, CORNER, 555),
    "ijcnn1, (.8, .2)": Problem(IJCNN1, WIDE, (0.8, 0.2), 1000),
    "decoys 8, 1%": Problem(partial(decoys, per_positive=8, share=0.01), WIDE, (0.3, 0.03), 555),
    "decoys 8, 0.05%": Problem(partial(decoys, per_positive=8, share=0.0005), WIDE, (0.3, 0.002), 555),
    "decoys 8, FPR .05": Problem(partial(decoys, per_positive=8), WIDE, (0.3, 0.05), 555),
    "decoys 8, FPR .002": Problem(partial(decoys, per_positive=8), WIDE, (0.3, 0.002), 555),
}


@lru_cache(maxsize=1)
def data_of(name: str, seed: int) -> tuple[Part, Part, Part]:
    """The parts of a problem; the last one asked for is remembered."""
    parts: tuple[Part, Part, Part] = PROBLEMS[name].data(seed)
    return parts


def network(name: str, seed: int) -> nn.Sequential:
    """The network of a problem with the initial weights of a seed."""
    seed_everything(1000 + seed, verbose=False)
    widths = [data_of(name, seed)[0][0].shape[1], *PROBLEMS[name].hidden, 1]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


# ------------------------------------------------------------------------------- many cross-entropies at a time


class Variant(NamedTuple):
    """One network of the stack.

    Attributes:
        loss: cross-entropy, balanced cross-entropy, focal loss (gamma 2) or logit adjustment.
        rate: the learning rate.
        damping: 1 is Adam, 3 is `DampedAdam`.
        ours: with the weight decay and the warm-up that the package has by default, as `compare` trains cross-entropy.
    """

    loss: str
    rate: float
    damping: float = 1.0
    ours: bool = False


RATES = (0.001, 0.003, 0.01, 0.03, 0.1)
VARIANTS = [
    *(Variant(loss, rate) for loss in ("cross-entropy", "balanced") for rate in RATES),
    *(Variant(loss, rate, 3.0) for loss in ("cross-entropy", "balanced") for rate in RATES[1:4]),
    *(Variant(loss, rate) for loss in ("focal", "logit adjustment") for rate in RATES[1:4]),
    *(Variant(loss, rate, 3.0, ours=True) for loss in ("cross-entropy", "balanced") for rate in RATES[2:4]),
]
#: Those that are the tuned cross-entropies: plain and balanced, at all rates of both optimizers, without what is ours.
TUNED = 16


class Stack:
    """Networks of the same layers, trained side by side, each with its loss and rate; and the average of each.

    Adam, a linear warm-up over a tenth of the steps, and an average that weighs step k by about k^8, as the package has
    it. The package's own settings: matrices decay by 0.1, and the rate grows as the square of the steps.
    """

    def __init__(self, model: nn.Sequential, variants: list[Variant], prior: float) -> None:
        layers = [layer for layer in model if isinstance(layer, nn.Linear)]
        count = len(variants)
        self.weights = [w for layer in layers for w in self._copies(layer, count)]
        self.means, self.squares = ([torch.zeros_like(w) for w in self.weights] for _ in range(2))
        self.average = [w.detach().clone() for w in self.weights]
        self.rates = torch.tensor([v.rate for v in variants])[:, None, None]
        self.damping = torch.tensor([v.damping for v in variants])[:, None, None]
        self.ours = torch.tensor([float(v.ours) for v in variants])[:, None, None]
        self.of_loss = {loss: [k for k, v in enumerate(variants) if v.loss == loss] for loss, *_ in variants}
        self.balanced = torch.tensor([int(v.loss == "balanced") for v in variants])
        self.prior = math.log(prior / (1 - prior))
        self.step_number = 0

    @staticmethod
    def _copies(layer: nn.Linear, count: int) -> list[Tensor]:
        both = layer.weight.detach(), layer.bias.detach()[None]
        return [w.expand(count, *w.shape).clone().requires_grad_() for w in both]

    @staticmethod
    def scores(weights: list[Tensor], x: Tensor) -> Tensor:
        """Scores ``(models, N)`` of ``x``: ``(N, d)``, or ``(models, N, d)``."""
        h = x if x.ndim == 3 else x.expand(len(weights[0]), *x.shape)
        for k in range(0, len(weights), 2):
            h = torch.baddbmm(weights[k + 1], h.relu() if k else h, weights[k].transpose(1, 2))
        return h.squeeze(-1)

    def losses(self, scores: Tensor, uniform: Tensor, balanced: Tensor) -> Tensor:
        """The sum of all losses; each network has gradients of its own."""
        total = scores.new_zeros(())
        for loss, rows in self.of_loss.items():
            own, y = scores[rows], (balanced if loss == "balanced" else uniform).float()
            if loss == "logit adjustment":
                own = own + self.prior
            entropy = softplus(own) - y * own
            if loss == "focal":
                entropy = (-entropy).expm1().square() * entropy
            if loss == "balanced":
                total = total + 0.5 * (entropy[:, y == 1].mean(1) + entropy[:, y == 0].mean(1)).sum()
            else:
                total = total + entropy.mean(1).sum()
        return total

    def step(self, uniform: Part, balanced: Part, steps: int) -> None:
        """One step of all, of so many in the run."""
        self.step_number += 1
        inputs = torch.stack([uniform[0], balanced[0]])[self.balanced]
        total = self.losses(self.scores(self.weights, inputs), uniform[1], balanced[1])
        gradients = torch.autograd.grad(total, self.weights)
        grown = min(1.0, self.step_number / max(1, steps // 10))
        rates = self.rates * (self.ours * grown**2 + (1 - self.ours) * grown)
        with torch.no_grad():
            first, second = 1 - 0.9**self.step_number, 1 - 0.999**self.step_number
            for k, (w, gradient) in enumerate(zip(self.weights, gradients, strict=True)):
                mean = self.means[k].lerp_(gradient, 0.1)
                root = self.squares[k].mul_(0.999).addcmul_(gradient, gradient, value=0.001).sqrt()
                if k % 2 == 0:
                    root = torch.minimum(root.amax(2, keepdim=True), root * self.damping)
                    w.mul_(1 - rates * 0.1 * self.ours)
                w.sub_(rates * (mean / first) / (root / second**0.5 + 1e-8))
                self.average[k].lerp_(w, 9.0 / (self.step_number + 8.0))


def batches(y: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of a uniform batch of 256, and of one of 64 positives and 192 negatives, without end, epoch by epoch."""
    generator = torch.Generator().manual_seed(seed)
    pools = [torch.arange(len(y)), (y == 1).nonzero().squeeze(1), (y == 0).nonzero().squeeze(1)]
    left = [pool[:0] for pool in pools]
    while True:
        drawn = []
        for k, size in enumerate((256, 64, 192)):
            while len(left[k]) < size:
                left[k] = torch.cat([left[k], pools[k][torch.randperm(len(pools[k]), generator=generator)]])
            drawn.append(left[k][:size])
            left[k] = left[k][size:]
        yield drawn[0], torch.cat(drawn[1:])


def train_baselines(name: str, seed: int) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Records of all cross-entropies, and the validation scores of the averaged one that validated best."""
    problem = PROBLEMS[name]
    (x, y), (val_x, val_y), (test_x, test_y) = data_of(name, seed)
    stack = Stack(network(name, seed), VARIANTS, float(y.float().mean()))
    between = problem.steps // LOOKS
    best: dict[tuple[int, bool], tuple[tuple[float, float], int, list[Tensor]]] = {}
    start = time.process_time()
    for number, (uniform, balanced) in enumerate(batches(y, seed), 1):
        stack.step((x[uniform], y[uniform]), (x[balanced], y[balanced]), problem.steps)
        if number % between == 0:
            for averaged, weights in ((False, stack.weights), (True, stack.average)):
                for k, scores in enumerate(all_scores(weights, val_x)):
                    areas = areas_of(scores, val_y, problem.rectangle)
                    if areas > best.get((k, averaged), ((-1.0, -1.0),))[0]:
                        best[k, averaged] = areas, number, [w[k : k + 1].detach().clone() for w in weights]
        if number == problem.steps:
            break
    seconds = (time.process_time() - start) / len(VARIANTS)
    records, kept = [], {}
    for averaged in (False, True):
        found = [best[k, averaged] for k in range(len(VARIANTS))]
        tested = all_scores(
            [torch.cat(parts) for parts in zip(*(weights for *_, weights in found), strict=True)], test_x
        )
        for variant, (areas, step, _), scores in zip(VARIANTS, found, tested, strict=True):
            method = variant.loss + (", ours" if variant.ours else "") + (", averaged" if averaged else "")
            rate = f"{variant.rate:g}{' damped' if variant.damping > 1 else ''}"
            records.append(record(name, seed, method, rate, areas, step, scores, test_y, seconds))
    chosen = max(range(TUNED), key=lambda k: best[k, True][0])
    kept = {"scores": all_scores(best[chosen, True][2], val_x)[0], "target": val_y}
    return records, kept


@torch.no_grad()
def all_scores(weights: list[Tensor], x: Tensor) -> Tensor:
    """Scores ``(models, N)``, in pieces that fit into caches."""
    return torch.cat([Stack.scores(weights, part) for part in torch.split(x, 1024)], 1)


def areas_of(scores: Tensor, target: Tensor, rectangle: Rectangle) -> tuple[float, float]:
    """TPAUC and AUROC; 0 of scores that aren't finite."""
    if not bool(scores.isfinite().all()):
        return 0.0, 0.0
    tpauc, auroc = (float(two_way_partial_auroc(scores, target, *r)) for r in (rectangle, (0.0, 1.0)))
    return tpauc, auroc


def record(
    name: str,
    seed: int,
    method: str,
    rate: str,
    areas: tuple[float, float],
    step: int,
    scores: Tensor,
    target: Tensor,
    seconds: float,
) -> dict[str, Any]:
    """One line of the file."""
    tpauc, area = areas_of(scores, target, PROBLEMS[name].rectangle)
    max_fpr = PROBLEMS[name].rectangle[1]
    threshold = scores[target == 0].quantile(1 - max_fpr)
    tpr = float((scores[target == 1] > threshold).float().mean())
    key = f"{name} | {seed} | {method} | {rate}"
    values = {"val": areas[0], "val_auroc": areas[1], "step": step, "test": tpauc, "auroc": area, "tpr": tpr}
    return {"key": key, "problem": name, "seed": seed, "method": method, "rate": rate, **values, "seconds": seconds}


# ------------------------------------------------------------------------------------- what trains in Lightning

METHODS: dict[str, tuple[Callable[..., Algorithm], tuple[float, ...], Mapping[str, Any]]] = {
    "STACO": (STACO, (1.0,), {}),
    "STACO, short warm-up": (STACO, (1.0,), {}),
    "STACO, short warm-up, no decay": (STACO, (1.0,), {}),
    "STACO, long warm-up": (STACO, (1.0,), {"warmup": 0.3}),
    "PAUCI": (PAUCI, (0.316, 1.0, 3.16), {"score_activation": "sigmoid"}),
    "SOTA-s": (SOTAs, (0.316, 1.0, 3.16), {}),
    "PAUCI, unbiased": (partial(PAUCI, width=0.1), (0.316, 1.0, 3.16), {"score_activation": "sigmoid"}),
    "SOTA-s, SCENT": (partial(SOTAs, alpha=math.exp(-4)), (0.316, 1.0, 3.16), {}),
}


class Looks(Callback):
    """Keeps the step that validated best."""

    def __init__(self) -> None:
        self.best, self.step = (-1.0, -1.0), 0

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare."""
        logged = trainer.callback_metrics
        areas = float(logged["val/tpauc"]), float(logged["val/auroc"])
        if areas > self.best:
            self.best, self.step = areas, trainer.global_step


class ShortWarmup(DampedAdam):
    """DampedAdam whose rate grows linearly over its first steps, which a method's own step sizes do not follow."""

    def __init__(self, params: Any, warmup: int, **kwargs: Any) -> None:
        super().__init__(params, **kwargs)
        self.warmup, self.count = warmup, 0

    def step(self, closure: Any = None) -> Any:
        """One step."""
        self.count += 1
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] *= min(1.0, self.count / self.warmup)
        loss = super().step(closure)
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate
        return loss


def train_method(name: str, seed: int, method: str, factor: float) -> dict[str, Any]:
    """One training with the package, at the default rate times ``factor``."""
    make, _, options = METHODS[method]
    problem, (train, val, (test_x, test_y)) = PROBLEMS[name], data_of(name, seed)
    data = PosNegDataModule(train, val_dataset=val, seed=seed, batch_size=4096)
    algorithm = make(*problem.rectangle)
    rate = algorithm.default_lr * factor
    settings: dict[str, Any] = {"lr": rate, "weight_decay": 0.0 if "no decay" in method else 0.1}
    if method in ("STACO", "STACO, long warm-up"):
        module = TPAUCModule(network(name, seed), algorithm, partial(DampedAdam, **settings), **options)
    else:
        optimizer = partial(ShortWarmup, warmup=problem.steps // 10, **settings)
        module = TPAUCModule(network(name, seed), algorithm, optimizer, warmup=0.0, **options)
    looks, start = Looks(), time.process_time()
    between = problem.steps // LOOKS
    trainer = bare_trainer(
        max_steps=problem.steps,
        val_check_interval=between,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        callbacks=[looks],
    )
    with suppress(NonFiniteError):  # its best validation counts, or nothing
        trainer.fit(module, data)
    seconds = time.process_time() - start
    with torch.no_grad():
        module.eval()
        scores = torch.cat([module.raw_scores(part) for part in torch.split(test_x, 4096)]).reshape(-1)
    shown = f"{rate:g}"
    return record(name, seed, method, shown, looks.best, looks.step, scores, test_y, seconds)


# ------------------------------------------------------------------------------------------------- the whole study


def jobs(seeds: range, names: list[str], methods: list[str]) -> Iterator[tuple[str, int, str]]:
    """Problem, seed and what is trained: one of :data:`METHODS`, or all cross-entropies."""
    for seed in seeds:
        for name in names:
            for method in methods:
                yield name, seed, method


def work(path: Path, wanted: Iterator[tuple[str, int, str]]) -> None:
    """Train what the file lacks."""
    done = {(r["problem"], r["seed"], r["method"]) for r in read(path)}
    for name, seed, method in wanted:
        if (name, seed, "cross-entropy" if method == "baselines" else method) in done:
            continue
        if method == "baselines":
            records, kept = train_baselines(name, seed)
            folder = path.with_suffix("")
            folder.mkdir(exist_ok=True)
            torch.save(kept, folder / f"{name} {seed}.pt")
        else:
            records = [train_method(name, seed, method, factor) for factor in METHODS[method][1]]
        with path.open("a") as file:
            file.write("".join(json.dumps(r) + "\n" for r in records))


def read(path: Path) -> list[dict[str, Any]]:
    """All records of a file, or of a table that ``--pack`` wrote."""
    if path.suffix == ".gz":
        return [{str(key): value for key, value in row.items()} for row in pd.read_csv(path).to_dict("records")]
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


# ------------------------------------------------------------------------------------------------------- results

CORNERS = {
    "decoys 8, 1%": "8 decoys, 1% positive, (.3, .03)",
    "decoys 8, 0.05%": "8 decoys, 0.05% positive, (.3, .002)",
    "decoys 8, FPR .05": "8 decoys, (.3, .05)",
    "decoys 8, FPR .002": "8 decoys, (.3, .002)",
    "decoys 8, linear cue": "8 decoys, linear cue",
}
ALONE = {
    "ijcnn1, (.8, .2)": "ijcnn1, network, (.8, .2)",
    "ijcnn1, linear, (.5, .5)": "ijcnn1, linear, (.5, .5)",
    "ijcnn1, linear, (.8, .2)": "ijcnn1, linear, (.8, .2)",
    "adult, linear, (.7, .3)": "adult, linear, (.7, .3)",
    "adult, 160 positives": "adult, 160 positives, network, (.5, .5)",
}
#: The problems of each row of the tables.
GROUPS: dict[str, tuple[str, ...]] = {
    "no decoys": ("decoys 0",),
    **{f"{k} decoys a positive": (f"decoys {k}",) for k in (2, 8, 20)},
    **{title: (name,) for name, title in CORNERS.items()},
    "all nine kinds of decoys": tuple(name for name in PROBLEMS if name.startswith("decoys")),
    "26 letters, network": tuple(f"letter {c}" for c in NAMES),
    "26 letters, linear, (.5, .3)": tuple(f"letter {c}, linear" for c in NAMES),
    **{title: (name,) for name, title in ALONE.items()},
    "6 letters, 20% of the positives wrong, (.8, .05)": tuple(f"letter {c}, wrong labels" for c in "BEHKRS"),
    "the same, (.3, .05)": tuple(f"letter {c}, wrong labels, TPR .3" for c in "BEHKRS"),
    f"all {len(PROBLEMS)} problems": tuple(PROBLEMS),
}
OURS = ("cross-entropy, ours, averaged", "balanced, ours, averaged")
#: What each column chooses among, by validation.
SHOWN: dict[str, tuple[str, ...]] = {
    "cross-entropy": ("cross-entropy",),
    "focal": ("focal", "focal, averaged"),
    "logit adj.": ("logit adjustment", "logit adjustment, averaged"),
    "balanced": ("balanced",),
    "plain or balanced": ("cross-entropy", "balanced"),
    "averaged": ("cross-entropy, averaged", "balanced, averaged"),
    "averaged, ours": OURS,
    "averaged, or STACO": ("cross-entropy, averaged", "balanced, averaged", "STACO"),
    "averaged, ours, or STACO": (*OURS, "STACO"),
    **{method: (method,) for method in METHODS},
}
USED = ("cross-entropy", "focal", "logit adj.", "balanced", "averaged", "averaged, ours")
PUBLISHED = ("PAUCI", "PAUCI, unbiased", "SOTA-s", "SOTA-s, SCENT")
FORMER = ("short warm-up", "short warm-up, no decay", "long warm-up")
STORED = ["problem", "seed", "method", "rate", "step", "val", "val_auroc", "test", "tpr"]


class Chosen(NamedTuple):
    """The training of a problem and seed that validated best among those of some methods."""

    val: float
    test: float
    tpr: float
    val_auroc: float


#: By problem and column of :data:`SHOWN`, what each seed chose.
Found = Mapping[tuple[str, str], Mapping[int, Chosen]]


def chosen(records: list[dict[str, Any]]) -> Found:
    """By problem and column of :data:`SHOWN`, of each seed what validation chose."""
    by_run: dict[tuple[str, int, str], list[dict[str, Any]]] = defaultdict(list)
    for r in records:
        by_run[r["problem"], r["seed"], r["method"]].append(r)
    found: dict[tuple[str, str], dict[int, Chosen]] = defaultdict(dict)
    for name, seed in sorted({(r["problem"], r["seed"]) for r in records}):
        for column, methods in SHOWN.items():
            tried = [r for method in methods for r in by_run[name, seed, method]]
            if tried:
                best = max(tried, key=lambda r: (r["val"], r["val_auroc"]))
                found[name, column][seed] = Chosen(*(best[field] for field in Chosen._fields))
    return found


def difference(
    found: Found, names: tuple[str, ...], ours: str, theirs: str, field: str
) -> tuple[float, float, float, int, int]:
    """Mean paired difference, its 95% interval by Student's t, and numbers of units and of trainings.

    The units of one problem are its seeds; those of several are the problems, each the mean over its seeds.
    """
    units = []
    for name in names:
        one, other = found.get((name, ours), {}), found.get((name, theirs), {})
        pairs = [getattr(one[seed], field) - getattr(other[seed], field) for seed in one.keys() & other.keys()]
        units.append(pairs)
    count = sum(map(len, units))
    values = units[0] if len(names) == 1 else [fmean(pairs) for pairs in units if pairs]
    if len(values) < 2:
        return (values or [math.nan])[0], math.nan, math.nan, len(values), count
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return fmean(values), fmean(values) - half, fmean(values) + half, len(values), count


def print_rows(heads: list[str], rows: list[list[str]]) -> None:
    """A table, if it has rows."""
    if rows:
        print()
        for cells in (heads, ["---"] * len(heads), *rows):
            print(f"| {' | '.join(cells)} |")


def print_means(found: Found, columns: tuple[str, ...], title: str) -> None:
    """Means of test TPAUC, over the seeds that all columns of a row have."""
    rows = []
    for group, names in GROUPS.items():
        seeds = {name: set.intersection(*(set(found.get((name, column), ())) for column in columns)) for name in names}
        if count := min(map(len, seeds.values())):
            means = (fmean(fmean(found[n, c][seed].test for seed in seeds[n]) for n in names) for c in columns)
            rows.append([group, *(f"{mean:.3f}" for mean in means), str(count)])
    print_rows([title, *columns, "seeds"], rows)


def print_differences(found: Found, pairs: Mapping[str, tuple[str, str, str]], title: str) -> None:
    """Mean differences with intervals: of each column of the table, two columns of :data:`SHOWN` and a field."""
    known = {column for _, column in found}
    pairs = {head: pair for head, pair in pairs.items() if known.issuperset(pair[:2])}
    rows = []
    for group, names in GROUPS.items():
        cells = []
        for ours, theirs, field in pairs.values():
            mean, low, high, *_ = difference(found, names, ours, theirs, field)
            full = all((name, column) in found for name in names for column in (ours, theirs))
            cells.append(f"{mean:+.3f} ({low:+.3f} to {high:+.3f})" if full else "")
        if any(cells):
            rows.append([group, *cells])
    print_rows([title, *pairs], rows)


def print_tables(found: Found) -> None:
    """STACO beside what people use, beside what was published, beside its own former defaults, and as a candidate."""
    print_means(found, (*USED, "STACO"), "test TPAUC, means")
    others = ("cross-entropy", "focal", "logit adj.", "plain or balanced", "averaged", "averaged, ours")
    pairs = {column: ("STACO", column, "test") for column in others}
    print_differences(found, {**pairs, "averaged, on validation": ("STACO", "averaged", "val")}, "STACO less ...")
    print_means(found, (*PUBLISHED, "STACO"), "test TPAUC of published methods, means")
    print_differences(found, {column: ("STACO", column, "test") for column in PUBLISHED}, "STACO less ...")
    former = {
        f"{column}, {data}": ("STACO", f"STACO, {column}", field)
        for field, data in (("val", "validation"), ("test", "test"))
        for column in FORMER
    }
    print_differences(found, former, "STACO less STACO with ...")
    beside = {column: (f"{column}, or STACO", column, "test") for column in ("averaged", "averaged, ours")}
    print_differences(found, beside, "STACO or ..., less ... alone")


def print_diagnostic(found: Found) -> None:
    """Does what plain cross-entropy reaches on validation data tell how far STACO is ahead of it on test data?

    The rule: its AUROC is above .95, and its TPAUC below .95.
    """
    units: dict[str, list[tuple[float, bool, float]]] = defaultdict(list)
    for name, seeds in [(name, seeds) for (name, column), seeds in found.items() if column == "STACO"]:
        for seed, ours in seeds.items():
            if theirs := found.get((name, "cross-entropy"), {}).get(seed):
                families = (own for own in ("decoys", "linear", "wrong", "letter") if own in name)
                holds = theirs.val_auroc > 0.95 and theirs.val < 0.95
                units[next(families, "adult, ijcnn1")].append((1 - theirs.val, holds, ours.test - theirs.test))
    units["all but wrong labels"] = [unit for family, own in units.items() if family != "wrong" for unit in own]
    rows = []
    for family, own in units.items():
        sides = [[gain for _, holds, gain in own if holds == wanted] for wanted in (True, False)]
        cells = [f"{fmean(side):+.3f}, {fmean(x > 0 for x in side):.0%}" if side else "" for side in sides]
        if len(own) > 2:
            rank = stats.spearmanr([lost for lost, *_ in own], [gain for *_, gain in own]).statistic
            rows.append([family, str(len(own)), str(len(sides[0])), *cells, f"{rank:.2f}"])
    heads = ["STACO less cross-entropy", "trainings", "the rule holds", "mean, share ahead there", "elsewhere"]
    print_rows([*heads, "Spearman"], rows)


def print_repeats(found: Found) -> None:
    """How much of STACO's gain belongs to the problem, and how much to the seed? It bounds what a diagnostic can tell.

    The first rank correlation is that of a seed's gain on test data with the mean gain of the other seeds of the same
    problem, as if the problem had been tried four times before. The second is that with the gain that the same two
    trainings show on validation data.
    """

    def gains(name: str, column: str, field: str) -> list[float]:
        pairs = ((own, found[name, column][seed]) for seed, own in sorted(found[name, "STACO"].items()))
        return [getattr(own, field) - getattr(other, field) for own, other in pairs]

    right = tuple(name for name in PROBLEMS if "wrong" not in name)
    groups = {"all but wrong labels": right, "letters, network": GROUPS["26 letters, network"]}
    rows = []
    for column, (title, group) in itertools.product(("cross-entropy", "logit adj.", "averaged"), groups.items()):
        names = [name for name in group if (name, column) in found and (name, "STACO") in found]
        if len(names) < 3:
            continue
        test, val = (np.array([gains(name, column, field) for name in names]) for field in ("test", "val"))
        others = (test.sum(1, keepdims=True) - test) / (test.shape[1] - 1)
        noise = test.var(1, ddof=1).mean()
        between = max(0.0, test.mean(1).var(ddof=1) - noise / test.shape[1])
        ranks = [stats.spearmanr(known.ravel(), test.ravel()).statistic for known in (others, val)]
        spreads = [f"{variance**0.5:.3f}" for variance in (between, noise)]
        rows.append([f"{column}, {title}", str(len(names)), *spreads, *(f"{rank:.2f}" for rank in ranks)])
    heads = ["STACO less", "problems", "SD of the problems", "SD of a training", "other seeds", "own validation"]
    print_rows(heads, rows)


def draw(found: Found, path: Path) -> None:
    """The gain of STACO against the number of decoys per positive: a dot for each seed, and means."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    ax, counts = figure.subplots(), (0, 2, 8, 20)
    ax.axhline(0, color="#8a8f98", linewidth=1)
    for (column, label), colour in zip(DRAWN.items(), ("#b0413e", "#f2a33a", "#4c9a6a", "#1f3b57"), strict=True):
        gains = []
        for place, count in enumerate(counts):
            ours, theirs = found[f"decoys {count}", "STACO"], found[f"decoys {count}", column]
            own = [ours[seed].test - theirs[seed].test for seed in ours.keys() & theirs.keys()]
            ax.plot([place] * len(own), own, ".", color=colour, alpha=0.45)
            gains.append(fmean(own))
        ax.plot(range(len(counts)), gains, "o-", label=label, color=colour, linewidth=1.8)
    ax.set(xticks=range(len(counts)), xticklabels=counts, xlabel="look-alike negatives (decoys) for each positive")
    ax.set_ylabel("test TPAUC: untuned STACO less the other")
    ax.set_title("0.15% positive, network 64-64, TPR ≥ .3 and FPR ≤ .005", fontsize=9)
    ax.legend(fontsize=8, frameon=False, title="less, tuned on validation data,", title_fontsize=8)
    ax.grid(alpha=0.2)
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110, metadata={"Software": None})


DRAWN = {
    "cross-entropy": "cross-entropy, uniform batches (8 settings)",
    "logit adj.": "logit adjustment (6)",
    "plain or balanced": "cross-entropy, uniform or balanced batches (16)",
    "averaged": "the same with the average of the weights (16)",
}


def main(args: list[str] | None = None) -> None:
    """Train what the file lacks, then print the tables of what it has."""
    own = arguments(
        __doc__,
        args,
        file="regimes.jsonl",
        seeds=5,
        first_seed=0,
        sets="*",
        methods="baselines;STACO",
        steps=0,
        only_table=0,
        plot="",
        pack="",
    )
    quiet()
    path, names = Path(own.file), [name for name in PROBLEMS if any(fnmatch(name, one) for one in own.sets.split(";"))]
    if own.steps:  # shorter runs, into a file of their own
        PROBLEMS.update({name: problem._replace(steps=own.steps) for name, problem in PROBLEMS.items()})
    if not own.only_table:
        work(path, jobs(range(own.first_seed, own.first_seed + own.seeds), names, own.methods.split(";")))
    records = read(path)
    found = chosen(records)
    print_tables(found)
    print_diagnostic(found)
    print_repeats(found)
    if own.pack:
        table = pd.DataFrame(records)[STORED].sort_values(STORED[:4], kind="stable")
        table.round(5).to_csv(own.pack, index=False, compression={"method": "gzip", "mtime": 0})
    if own.plot:
        draw(found, Path(own.plot))


if __name__ == "__main__":
    main()
