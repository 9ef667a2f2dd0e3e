"""What was tried to make STACO better: eight changes to its defaults, on validation data alone.

Two became defaults: *decay*, and then *slow start*. All others, and what they are compared with, are without them: with
a warm-up over a tenth of the run.

- *few positives a step*: 16 positives and 240 negatives in place of 64 and 192.
- *early looks*: four times as many validations in the first eighth of the run. If after a quarter of it the best lies
  within the first sixteenth, training goes on from there at a quarter of the rate.
- *after cross-entropy*: balanced cross-entropy takes the first third of the steps, STACO goes on from its average.
- *decay*: decoupled weight decay of 0.1 on the matrices; also together with the early looks.
- *slow start*: the rate grows with the square of the steps, over 30% of the run.
- *beside cross-entropy*: 0.3 times the balanced cross-entropy is added to the loss.
- *queue*: the dual variables also see the negatives' scores of the last four steps, as they were.
- *wide while young*: both sides of the trained rectangle are longer by 1 + exp(-v / 20), and at most 1, where v is how
  often the positives were visited on average.

The problems are those of ``benchmarks/regimes.py``, with seeds that its table does not have. The validation data are
cut into halves: one chooses among a training's looks, the other measures, and the mean over both ways counts. So more
looks are no gain by themselves. The test data are never read.

    python -m benchmarks.candidates --file candidates.jsonl
"""

from __future__ import annotations

import json
import math
from collections import defaultdict, deque
from contextlib import suppress
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.nn.functional import softplus

from benchmarks.common import arguments, bare_trainer, quiet
from benchmarks.regimes import (
    LOOKS,
    PROBLEMS,
    Part,
    Problem,
    ShortWarmup,
    areas_of,
    data_of,
    difference,
    jobs,
    network,
    read,
)
from lightning_tpauc import DampedAdam, PosNegDataModule, StageCallback, TPAUCModule
from lightning_tpauc.algorithms import STACO, CrossEntropy
from lightning_tpauc.errors import NonFiniteError

#: The hardest letters are those on which cross-entropy without an average validated worst on the study's first seeds.
GROUPS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in ("decoys 8", "decoys 0", "adult, 160 positives", "ijcnn1, (.8, .2)")},
    "the eight hardest letters": tuple(f"letter {c}" for c in "HKRBFPEV"),
    "six letters, wrong labels": tuple(f"letter {c}, wrong labels, TPR .3" for c in "BEHKRS"),
}
GROUPS["all 18"] = tuple(name for names in GROUPS.values() for name in names)


class Queue(STACO):
    """STACO whose dual variables also see the negatives' scores of the last steps."""

    def __init__(self, *rectangle: float) -> None:
        super().__init__(*rectangle, share_negatives=False)
        self.needs_dual_negatives = False  # none are drawn
        self.last: deque[Tensor] = deque(maxlen=4)

    def step(self, pos_scores: Tensor, neg_scores: Tensor, _: Tensor, index: Tensor, masks: Any = None) -> Tensor:
        """One step, with the queue in the place of the second batch of negatives."""
        own = neg_scores.detach()
        loss = super().step(pos_scores, neg_scores, torch.cat([own, *self.last]), index, masks)
        self.last.append(own)
        return loss


class Beside(TPAUCModule):
    """STACO's loss and some balanced cross-entropy."""

    def auxiliary_loss(self, batch: Any, scores: Any) -> Tensor:
        """The cross-entropy's part."""
        return 0.15 * (softplus(-scores.pos_scores).mean() + softplus(scores.neg_scores).mean())


class WideWhileYoung(STACO):
    """STACO whose steps have a larger rectangle until its positives were visited often."""

    visits = 0.0

    def thetas(self, dtype: torch.dtype | None = None) -> Any:
        """Sides of the rectangle, widened."""
        return tuple(min(1.0, side * (1.0 + math.exp(-self.visits / 20.0))) for side in super().thetas(dtype))

    def step(self, *scores: Any) -> Tensor:
        """One step, and a visit of each of its positives."""
        loss = super().step(*scores)
        self.visits += scores[0].numel() / self.y.numel()
        return loss


DEFAULT, FEW, EARLY, AFTER = "no decay", "few positives a step", "early looks", "after cross-entropy"
DECAY, BOTH, SLOW, BESIDE = "decay", "decay, early looks", "slow start", "beside cross-entropy"
KINDS = {"queue": Queue, "wide while young": WideWhileYoung}
CANDIDATES = (DEFAULT, FEW, EARLY, AFTER, DECAY, BOTH, SLOW, BESIDE, *KINDS)


class Looks(Callback):
    """Of each look the step, and TPAUC and AUROC on both halves of the validation data and on the whole."""

    def __init__(self, val: Part, problem: Problem, seed: int, early: bool) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.val, self.problem, self.early, self.before = val, problem, early, 0
        first = torch.zeros(len(val[1]), dtype=torch.bool)
        for label in (0, 1):
            rows = (val[1] == label).nonzero().squeeze(1)
            first[rows[torch.randperm(len(rows), generator=generator)[: len(rows) // 2]]] = True
        self.parts = [first, ~first, torch.ones_like(first)]
        self.seen: list[tuple[int, list[tuple[float, float]]]] = []
        self.best: tuple[tuple[float, float], int, list[Tensor]] = ((-1.0, -1.0), 0, [])

    @torch.no_grad()
    def look(self, module: TPAUCModule, step: int) -> None:
        """Score the validation data with the weights that the module has."""
        scores = torch.cat([module.raw_scores(x) for x in torch.split(self.val[0], 4096)]).reshape(-1)
        areas = [areas_of(scores[part], self.val[1][part], self.problem.rectangle) for part in self.parts]
        self.seen.append((self.before + step, areas))
        if areas[2] > self.best[0]:
            self.best = areas[2], step, [p.detach().clone() for p in module.parameters()]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The looks that the defaults have; the module shows its average."""
        self.look(pl_module, trainer.global_step)  # type: ignore[arg-type]  # it trains no other module

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        """Further looks at first, and the way back where the best was passed."""
        step, between = trainer.global_step, self.problem.steps // LOOKS
        if not self.early:
            return
        if step < 2 * between and step % (between // 4) == 0 and step % between:
            pl_module.training_state.show_average()
            self.look(pl_module, step)
            pl_module.training_state.restore_last_iterate()
        if step == 4 * between + 1 and self.best[1] <= between:
            with torch.no_grad():
                for weight, best in zip(pl_module.parameters(), self.best[2], strict=True):
                    weight.copy_(best)
            for group in trainer.optimizers[0].param_groups:
                group["lr"] *= 0.25

    def held_out(self) -> float:
        """TPAUC on one half of the look that the other half chose, the mean over both ways."""
        chosen = [max(self.seen, key=lambda look: look[1][k])[1] for k in (0, 1)]
        return fmean((chosen[0][1][0], chosen[1][0][0]))


def fit(module: TPAUCModule, name: str, seed: int, steps: int, looks: Looks, **sizes: Any) -> None:
    """Train for some steps, with the looks of the problem's whole length."""
    train, val, _ = data_of(name, seed)
    data = PosNegDataModule(train, val_dataset=val, seed=seed + looks.before, batch_size=4096, **sizes)
    trainer = bare_trainer(
        max_steps=steps,
        val_check_interval=PROBLEMS[name].steps // LOOKS,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        callbacks=[looks, StageCallback(keep_best=False)],
    )
    with suppress(NonFiniteError):  # its best look counts
        trainer.fit(module, data)
    looks.before += steps


def trained(name: str, seed: int, candidate: str) -> dict[str, Any]:
    """One line of the file."""
    problem, net = PROBLEMS[name], network(name, seed)
    looks, steps = Looks(data_of(name, seed)[1], problem, seed, EARLY in candidate), problem.steps
    settings: dict[str, Any] = {"weight_decay": 0.1 if DECAY in candidate.split(", ") else 0.0}
    if candidate == AFTER:
        steps = problem.steps // 3
        optimizer = partial(ShortWarmup, warmup=steps // 10, **settings)
        first = TPAUCModule(net, CrossEntropy(*problem.rectangle, balanced=True), optimizer, warmup=0.0)
        fit(first, name, seed, steps, looks)
        steps = problem.steps - steps
    sizes = {"num_pos": 16, "num_neg": 240} if candidate == FEW else {}
    algorithm = KINDS.get(candidate, STACO)(*problem.rectangle)
    kind = Beside if candidate == BESIDE else TPAUCModule
    if candidate == SLOW:
        module = kind(net, algorithm, partial(DampedAdam, **settings))
    else:
        module = kind(net, algorithm, partial(ShortWarmup, warmup=steps // 10, **settings), warmup=0.0)
    fit(module, name, seed, steps, looks, **sizes)
    step, (*_, whole) = max(looks.seen, key=lambda look: look[1][2])
    values = {"held_out": looks.held_out(), "val": whole[0], "step": step}
    return {"problem": name, "seed": seed, "candidate": candidate, **values}


def print_table(records: list[dict[str, Any]]) -> None:
    """Paired differences to the defaults with 95% intervals; those of several problems have the problems as units."""
    found: Any = defaultdict(dict)
    for r in records:
        found[r["problem"], r["candidate"]][r["seed"]] = SimpleNamespace(**r)
    for field in ("held_out", "val"):
        print(f"\n| {field} | {DEFAULT} | {' | '.join(CANDIDATES[1:])} | trainings |")
        print(f"|---|{'---|' * (len(CANDIDATES) + 1)}")
        for title, names in GROUPS.items():
            own = [getattr(v, field) for name in names for v in found[name, DEFAULT].values()]
            cells = [f"{fmean(own):.3f}" if own else ""]
            for candidate in CANDIDATES[1:]:
                mean, low, high, _, count = difference(found, names, candidate, DEFAULT, field)
                cells.append(f"{mean:+.3f} ({low:+.3f} to {high:+.3f})" if count else "")
            print(f"| {title} | {' | '.join(cells)} | {len(own)} |")


def main(args: list[str] | None = None) -> None:
    """Train what the file lacks, then print the table of what it has."""
    own = arguments(
        __doc__,
        args,
        file="candidates.jsonl",
        seeds=2,
        first_seed=10,
        sets="*",
        which=";".join(CANDIDATES),
        only_table=0,
    )
    quiet()
    path, names = Path(own.file), [name for name in GROUPS["all 18"] if fnmatch(name, own.sets)]
    seeds = range(own.first_seed, own.first_seed + own.seeds)
    candidates = own.which.split(";")
    wanted = jobs(range(10, 11), ["letter H"], candidates) if own.quick else jobs(seeds, names, candidates)
    done = {(r["problem"], r["seed"], r["candidate"]) for r in read(path)}
    for job in wanted if not own.only_table else ():
        if job not in done:
            line = json.dumps(trained(*job))
            with path.open("a") as file:
                file.write(line + "\n")
    print_table(read(path))


if __name__ == "__main__":
    main()
