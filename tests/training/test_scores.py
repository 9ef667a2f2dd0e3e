"""The memory of scores against plain lists; what steers the rectangle against a pass over the training set."""

import io
import random
from itertools import count

import pytest
import torch
from torch import nn

from lightning_tpauc import PosNegDataModule, TPAUCModule
from lightning_tpauc.algorithms import STACO, TrainingScores
from lightning_tpauc.distributed import GatheredScores
from lightning_tpauc.functional import TaskMasks
from lightning_tpauc.training.rectangle import ScoreMemory, score_next_batches
from lightning_tpauc.training.state import read, written
from tests.helpers.problems import make_trainer

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
