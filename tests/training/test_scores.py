"""The memory of scores against plain lists; what steers the rectangle against a pass over the training set."""

import io
import random
from functools import cache
from itertools import count

import numpy as np
import pytest
import torch
from sklearn.datasets import load_svmlight_file
from torch import nn

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO, TrainingScores
from lightning_tpauc.algorithms.base import shrunk_rectangle
from lightning_tpauc.distributed import GatheredScores
from lightning_tpauc.functional import TaskMasks, objective_ratio
from lightning_tpauc.training.rectangle import RectangleSchedule, ScoreMemory, score_next_batches
from lightning_tpauc.training.state import read, written
from tests.helpers.paths import ROOT
from tests.helpers.problems import bare_trainer, make_trainer

RECENT = 16


class Lists:
    """What the memory is to hold: each positive's last score, the scores of each step, and where the stage began."""

    def __init__(self, sizes):
        self.sizes, self.steps, self.began = sizes, [], 0
        self.last = [{} for _ in sizes]

    def add(self, step):
        self.steps.append(step)
        for last, (pos, _) in zip(self.last, step, strict=True):
            last.update(pos)

    def of_last_steps(self):
        return self._joint(self.steps[-RECENT:])

    def _joint(self, steps):
        parts = [([], []) for _ in self.sizes]
        for step in steps:
            for (pos, neg), (new_pos, new_neg) in zip(parts, step, strict=True):
                pos.extend(new_pos.values())
                neg.extend(new_neg)
        return [(sorted(pos), sorted(neg)) if pos and neg else None for pos, neg in parts]

    def of_stage(self):
        known = self._joint(self.steps[self.began :])
        if None in known or any(len(last) < size for last, size in zip(self.last, self.sizes, strict=True)):
            return None
        return [([last[k] for k in range(len(last))], neg) for last, (_, neg) in zip(self.last, known, strict=True)]


def as_lists(scores, *, ordered):
    arrange = list if ordered else sorted
    return scores and [own and (arrange(own.pos_scores.tolist()), sorted(own.neg_scores.tolist())) for own in scores]


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def draw(rng, fresh, sizes):
    """A step: of each label the scores of some positives by their number, and of some negatives."""
    return [
        (
            {k: float(next(fresh)) for k in rng.sample(range(n), rng.randint(0, n))},
            [float(next(fresh)) for _ in range(rng.randint(0, 5))],
        )
        for n in sizes
    ]


def gathered(step, dtype):
    """The step as a batch holds it: padded, and with masks if there are several labels."""
    if len(step) == 1:
        ((pos, neg),) = step
        scores = torch.tensor(list(pos.values()), dtype=dtype), torch.tensor(neg, dtype=dtype)
        return GatheredScores(*scores, scores[1][:0], torch.tensor(list(pos), dtype=torch.int64))
    rows = [(list(pos.values()), neg, list(pos)) for pos, neg in step]
    pos, neg, index = (
        nn.utils.rnn.pad_sequence([torch.tensor(row[k], dtype=kind) for row in rows], batch_first=True)
        for k, kind in enumerate((dtype, dtype, torch.int64))
    )
    masks = TaskMasks(*(torch.arange(part.shape[1]) < torch.tensor([[len(row[k])] for row in rows])
                        for k, part in enumerate((pos, neg))))  # fmt: skip
    return GatheredScores(pos, neg, neg[:, :0], index, masks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(5,), (4, 1, 6)])
@pytest.mark.parametrize("seed", range(8))
def test_any_sequence_equals_plain_lists(seed, sizes, dtype):
    rng, fresh = random.Random(seed), count(1)  # noqa: S311  # sequences, not secrets
    memory, lists = ScoreMemory(sizes, whole_stages=True, dtype=dtype), Lists(sizes)
    for _ in range(rng.randint(1, 60)):
        what = rng.choice(["add"] * 12 + ["stage", "fill", "resume"])
        if what == "add":
            step = draw(rng, fresh, sizes)
            memory.add(gathered(step, dtype))
            lists.add(step)
        elif what == "stage":
            memory.begin_stage()
            lists.began = len(lists.steps)
        elif what == "fill" and not lists.steps:  # before the first step
            scores = [torch.tensor([float(next(fresh)) for _ in range(n)], dtype=dtype) for n in sizes]
            memory.fill([TrainingScores(pos, pos) for pos in scores])
            for last, pos in zip(lists.last, scores, strict=True):
                last.update(enumerate(pos.tolist()))
        elif what == "resume":
            state, memory = written(memory), ScoreMemory(sizes, whole_stages=True, dtype=dtype)
            read(memory, through_a_file(state))
        assert as_lists(memory.of_last_steps(), ordered=False) == lists.of_last_steps()
        assert as_lists(memory.of_stage(), ordered=True) == lists.of_stage()


def test_without_stages_nothing_is_kept_but_the_last_steps():
    memory = ScoreMemory([10**6], whole_stages=False)
    for k in range(100):
        memory.add(GatheredScores(torch.full((2,), float(k)), torch.zeros(3), torch.zeros(0), torch.arange(2)))
    state = written(memory)
    assert sum(part.numel() for part in (state["_last"], *state["_steps"]["joined"])) == RECENT * (2 + 3 + 2)
    assert memory.of_last_steps()[0].pos_scores.min() == 100 - RECENT


# ---------------------------------------------------------------- what steers the rectangle


def svmlight(path, columns):
    file = ROOT.parent / "shared" / "data" / path
    if not file.is_file():
        pytest.skip(f"{file} is missing")
    x, y = load_svmlight_file(str(file), n_features=columns)
    x = x.toarray()
    return ((x - x.mean(0)) / x.std(0).clip(1e-3)).astype("float32"), y > 0


def made():
    """12 columns and 3,542 negatives; two of three directions are noise."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(3900, 12))
    value = x[:, 0] + 0.5 * x[:, 1] * x[:, 2] + 1.2 * generator.normal(size=3900)
    return x.astype("float32"), value > np.sort(value)[3541]


DATA = {
    "ijcnn1": (lambda: svmlight("ijcnn1/ijcnn1.bz2", 22), (0.8, 0.2), lambda d: nn.Linear(d, 1)),
    "adult": (lambda: svmlight("adult/adult.trn.bz2", 123), (0.7, 0.3), lambda d: nn.Linear(d, 1)),
    "made": (made, (0.8, 0.1), lambda d: nn.Sequential(nn.Linear(d, 32), nn.ReLU(), nn.Linear(32, 1))),
}


@cache
def training_set(name):
    x, y = DATA[name][0]()
    return torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y).long()


class Passes(RectangleSchedule):
    """Beside each decision, the ratio of a pass over the whole training set."""

    seen = None

    def move(self, progress, scores, measure=lambda: None):
        fresh = []

        def measured():
            fresh.append(measure())
            return fresh[0]

        before = self.algorithm.tightness
        super().move(progress, scores, measured)
        candidate = min(progress, before + 0.1)
        if before < 1.0:
            pos, neg = self.whole_pass()
            rectangle = shrunk_rectangle(*self.algorithm.asked_rectangles[0], candidate)
            true = float(objective_ratio(pos, neg, *rectangle, self.algorithm.surrogate))
            self.seen.append((true, self._both_ratios(candidate, (fresh or [scores])[0], 0)[0], bool(fresh)))


@pytest.mark.parametrize("name", DATA)
def test_the_rectangle_goes_by_what_a_forward_pass_gives(name, monkeypatch, caplog):
    x, y = training_set(name)
    rectangle, make = DATA[name][1:]
    torch.manual_seed(0)
    module = TPAUCModule(make(x.shape[1]), STACO(*rectangle))

    def whole_pass():
        with torch.no_grad():
            scores = module(x)[:, 0]
        return scores[y == 1], scores[y == 0]

    Passes.whole_pass, Passes.seen = staticmethod(whole_pass), []
    monkeypatch.setattr("lightning_tpauc.training.rectangle.RectangleSchedule", Passes)
    with caplog.at_level("INFO"):
        bare_trainer(max_steps=400, max_epochs=-1).fit(module, PosNegDataModule((x, y)))
    near = [(true, used) for true, used, measured in Passes.seen if measured]
    assert len(near) >= 3
    for true, used in near:
        assert used == pytest.approx(true, rel=0.1)
    # where scores of the last steps decide they are right, or hold the rectangle until the next forward pass
    for true, used, _ in Passes.seen:
        assert (true < 0.85) == (used < 0.85) or used == pytest.approx(true, rel=0.1)
    if module.algorithm.tightness < 1.0 and "Then the run ended" not in caplog.text:
        true = objective_ratio(*whole_pass(), *rectangle, module.algorithm.surrogate)
        said = int(caplog.text.partition("gives all the same score, is ")[2].partition("%")[0]) / 100
        assert said == pytest.approx(float(true), rel=0.1)


def test_the_next_batches_are_scored_and_the_training_goes_on_as_if_they_were_not():
    x, y = torch.randn(90, 4, dtype=torch.float64), torch.arange(90) % 3 == 0

    def train(*, looks):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 1))

        class Looks(TPAUCModule):
            def on_train_batch_start(self, batch, batch_idx):
                if looks and batch_idx == 2:
                    (scores,) = score_next_batches(self, 2)
                    assert [len(part) for part in scores] == [8, 16]
                    assert self.training

        module = Looks(net, STACO(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
        make_trainer(max_epochs=2).fit(module, PosNegDataModule((x, y.long()), num_pos=4, num_neg=8))
        return module

    straight, looked = train(looks=False), train(looks=True)
    for (name, a), b in zip(straight.state_dict().items(), looked.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
