"""`TPAUCLoss`: STACO with tracked dual variables, as a module that remembers, in any loop."""

import copy
import warnings

import pytest
import torch
from torch import nn

from lightning_tpauc import TPAUCLoss
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.errors import ArgumentError, TPAUCAdvice
from tests.helpers.ddp import run_distributed
from tests.helpers.tolerances import assert_close
from tests.reference.tracked import Tracked


def batches(number, size=60, labels=1, seed=0):
    """Scores and labels in float64; of several labels some are missing."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(number):
        target = (torch.rand(size, labels, generator=generator) < 0.3).double()
        scores = torch.randn(size, labels, generator=generator, dtype=torch.float64) + target
        if labels > 1:
            target[torch.rand(size, labels, generator=generator) < 0.2] = torch.nan
        yield scores, target


def double(*args, progress=1.0, **kwargs):
    loss = TPAUCLoss(*args, **kwargs).double()
    loss.progress = progress
    return loss


def buffers(loss):
    return {name: value.clone() for name, value in loss.state_dict().items()}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


# ---------------------------------------------------------------- what it computes


@pytest.mark.parametrize("surrogate", ["hinge", "squared_hinge", "logistic", "smooth_ramp"])
@pytest.mark.parametrize(("labels", "size"), [(1, 60), (3, 60), (1, 700)])
def test_it_is_staco_of_each_label(surrogate, labels, size):
    loss = double(0.7, 0.3, surrogate, num_labels=labels)
    each = [STACO(0.7, 0.3, surrogate=surrogate, margin=1.0, duals="tracked") for _ in range(labels)]
    for algorithm in each:
        algorithm.setup(size, dtype=torch.float64)
    for step, (scores, target) in enumerate(batches(12, size, labels)):
        ours, theirs = (scores.clone().requires_grad_() for _ in range(2))
        loss.ratio.zero_()  # the rectangle waits for nothing
        loss.progress = step / 10  # a little above 1 is 1
        value = loss(ours, target)
        value *= 1.0  # in place, as some loops do
        value.backward()
        parts = []
        for k, algorithm in enumerate(each):
            algorithm.tightness = min(1.0, 2 * step / 10)
            pos, neg = (theirs[target[:, k] == which, k] for which in (1, 0))
            parts.append(algorithm(pos, neg, index=torch.arange(len(pos))))
        (sum(parts) / labels).backward()
        assert_close(value.detach(), sum(parts).detach() / labels)
        assert_close(ours.grad, theirs.grad)
        for k, algorithm in enumerate(each):
            for name in algorithm.state_specs:
                assert_close(getattr(loss, name)[k], getattr(algorithm, name))


@pytest.mark.parametrize("tells", [0.0, 6.0])
def test_the_rectangle_waits_where_the_model_can_tell_nothing(tells):
    generator = torch.Generator().manual_seed(0)
    net, loss = nn.Linear(2, 1), TPAUCLoss(0.8, 0.1)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for step in range(200):
        y = (torch.rand(64, generator=generator) < 0.3).long()
        x = torch.randn(64, 2, generator=generator) + tells * y[:, None]
        loss.progress = step / 200
        if step == 0:  # the rectangle is the square: the mean over all pairs
            scores = net(x).squeeze(1).detach()
            mean = (1.0 + scores[y == 0] - scores[y == 1][:, None]).clamp_min(0).mean()
        value = loss(net(x), y)
        if step == 0:
            assert_close(loss.ratio, 0.95 + 0.05 * mean, "float32")
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    assert float(loss.tightness) == 1.0 if tells else float(loss.tightness) < 0.2
    again = TPAUCLoss(0.8, 0.1)
    again.load_state_dict(loss.state_dict())
    loss.progress = again.progress = 0.998
    assert equal(again.state_dict(), loss.state_dict())
    again.double().progress = 0.998  # a little less than in float32
    assert_close(again.tightness, loss.tightness.double(), "float32")
    again.progress = 0.9  # back to earlier weights: no leap to the final size
    assert float(again.tightness) <= float(loss.tightness)
    loss.progress = 0.0  # a new run
    assert float(loss.tightness) == 0.0
    for score, ratio in ((9.0, 0.95), (-9e6, 0.95 + 0.05 * 4.0)):  # an outlier does not stop it for long
        one = TPAUCLoss(0.8, 0.1)
        one(torch.tensor([score, -score], requires_grad=True), torch.tensor([1, 0]))
        assert_close(one.ratio, torch.tensor(ratio), "float32")


def test_a_plain_loop_is_the_one_in_floats():
    generator = torch.Generator().manual_seed(1)
    reference = Tracked("3/10", "2/10", 1.0, "hinge", 0.1, in_units_of_the_loss=True)
    net, loss = nn.Linear(4, 1, bias=False).double(), double(0.7, 0.2)
    nn.init.zeros_(net.weight)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(40):
        x = torch.randn(25, 4, generator=generator, dtype=torch.float64)
        y = (x[:, 0] + torch.randn(25, generator=generator, dtype=torch.float64) > 0.7).long()
        pos, neg = x[y == 1].tolist(), x[y == 0].tolist()
        value = loss(net(x), y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        assert_close(value.detach(), reference.step(pos, neg, neg), "trajectory64")
        assert_close(net.weight[0].detach(), reference.w, "trajectory64")


def test_shapes_and_codes_of_one_label_mean_the_same():
    ((scores, target),) = batches(1)
    scores, target = scores[:, 0], target[:, 0]
    target[:5] = torch.nan
    codes = target.nan_to_num(-1.0)
    expected = double(0.5, 0.5)(scores, target)
    two = torch.stack([torch.ones_like(scores), scores + 1.0], 1)
    column, others = scores[:, None], [(scores, codes.long()), (two, codes.int()), (scores, target.tolist())]
    for given, labels in ((column, target), (column, target[:, None]), *others):
        assert_close(double(0.5, 0.5)(given, labels), expected)
    spoilt = torch.where(target.isnan(), torch.nan, scores).requires_grad_()
    value = double(0.5, 0.5)(spoilt, target)
    value.backward()
    assert_close(value.detach(), expected)
    assert torch.equal(spoilt.grad[:5], torch.zeros(5))


@pytest.mark.parametrize("of_first", [0.0, 1.0, torch.nan, -1.0])
@pytest.mark.parametrize("labels", [1, 2])
def test_without_a_class_nothing_happens(of_first, labels):
    loss = double(0.5, 0.5, num_labels=labels)
    (scores, target), (later, codes) = batches(2, labels=labels)
    loss(scores, target)
    before = buffers(loss)
    codes[:, 0] = of_first
    later.requires_grad_()
    value = loss(later, codes)
    value.backward()
    assert torch.equal(later.grad[:, 0], torch.zeros(60))
    assert bool(value == 0) is (labels == 1)
    for name, old in before.items():
        assert torch.equal(getattr(loss, name).reshape(-1)[0], old.reshape(-1)[0])
    empty = torch.zeros(0, labels, requires_grad=True)
    loss(empty, torch.zeros(0, labels)).backward()
    assert empty.grad.shape == (0, labels)


# ---------------------------------------------------------------- what it remembers


class Judged(nn.Module):
    """A model with its loss as a part, as DDP and the Trainer of Hugging Face like it."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net, self.loss = nn.Linear(4, 1), TPAUCLoss(0.7, 0.3)

    def forward(self, x, y):
        return self.loss(self.net(x), y)


def test_a_checkpoint_takes_it_along():
    straight, resumed = Judged(), Judged()
    x, y = torch.randn(12, 40, 4), torch.randint(2, (12, 40))

    def steps(model, numbers):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for k in numbers:
            model.loss.progress = k / 12
            optimizer.zero_grad()
            model(x[k], y[k]).backward()
            optimizer.step()

    steps(straight, range(6))
    resumed.load_state_dict(buffers(straight))
    steps(straight, range(6, 12))
    steps(resumed, range(6, 12))
    assert equal(buffers(straight), buffers(resumed))
    assert equal(buffers(copy.deepcopy(straight)), buffers(straight))


@pytest.mark.parametrize("how", ["eval", "no_grad", "overflow", "nan"])
def test_only_sound_training_steps_are_remembered(how):
    loss = double(0.7, 0.3)
    (scores, target), (later, codes) = batches(2)
    loss(scores, target)
    before, expected = buffers(loss), copy.deepcopy(loss)(later, codes)
    if how == "eval":
        assert torch.equal(loss.eval()(later, codes), expected)
    elif how == "no_grad":
        with torch.no_grad():
            assert torch.equal(loss(later, codes), expected)
    else:
        codes[:2, 0] = torch.tensor([0.0, 1.0])
        later[:2] = torch.tensor([[torch.inf], [-torch.inf]]) if how == "overflow" else torch.nan
        assert not loss(later, codes).isfinite()
    assert equal(buffers(loss), before)
    loss.train()(scores, target)
    assert not equal(buffers(loss), before)


@pytest.mark.filterwarnings("ignore::lightning_tpauc.errors.TPAUCAdvice")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_running_means_in_full(dtype):
    scores, y = torch.randn(40).to(dtype), torch.randint(2, (40,))
    expected, cast = TPAUCLoss(0.7, 0.3)(scores.float(), y), TPAUCLoss(0.7, 0.3).to(dtype)
    assert cast.loss_unit.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        for loss in (cast, TPAUCLoss(0.7, 0.3)):
            assert torch.equal(loss(scores, y), expected)


# ---------------------------------------------------------------- where it runs


@pytest.mark.slow
@pytest.mark.parametrize("labels", [1, 3])
def test_it_compiles_into_one_graph(labels):
    """So nothing waits for a value on the device."""
    torch.compiler.reset()
    loss = double(0.7, 0.3, num_labels=labels)
    beside = copy.deepcopy(loss)
    compiled = torch.compile(beside, fullgraph=True, backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    for step, (scores, target) in enumerate(batches(6, labels=labels)):
        loss.progress = beside.progress = step / 6
        target[:, 0] = 0.0 if step == 3 else target[:, 0]
        ours, theirs = (scores.clone().requires_grad_() for _ in range(2))
        loss(ours, target).backward()
        compiled(theirs, target).backward()
        assert_close(theirs.grad, ours.grad)
    for name, value in loss.state_dict().items():
        assert_close(beside.state_dict()[name], value)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    torch.compiler.reset()


def trained(labels, shares, gather, wrap=lambda net: net):
    """Gradients of three batches, of whose rows this process sees a share, and what the loss remembers."""
    net, loss = nn.Linear(labels, labels).double(), double(0.7, 0.3, num_labels=labels, gather=gather)
    nn.init.eye_(net.weight)
    model, gradients = wrap(net), []
    for scores, target in batches(3, labels=labels):
        net.zero_grad()
        loss(model(scores[shares]), target[shares]).backward()
        gradients.append(net.weight.grad.clone())
    return gradients, buffers(loss)


@pytest.mark.ddp
@pytest.mark.parametrize("labels", [1, 3])
def test_gathered_it_is_one_process_with_the_joint_batch(labels):
    shares = slice(None, 20), slice(20, None)
    ranks = run_distributed(lambda rank, _: trained(labels, shares[rank], True, nn.parallel.DistributedDataParallel), 2)
    expected = trained(labels, slice(None), False)
    for gradients, remembered in ranks:
        for ours, theirs in zip(gradients, expected[0], strict=True):
            assert_close(ours, theirs)
        for name, value in expected[1].items():
            assert_close(remembered[name], value)


# ---------------------------------------------------------------- what it refuses and says


@pytest.mark.parametrize(
    ("arguments", "scores", "labels", "said"),
    [
        ({}, torch.zeros(4), torch.zeros(3), r"\(4,\) and \(3,\)"),
        ({}, torch.zeros(4, 3), torch.arange(4) % 3, r"`num_labels`, and .*one_hot\(labels, K\)"),
        ({"num_labels": 3}, torch.zeros(4), torch.zeros(4), r"\(N, 3\)"),
        ({}, torch.zeros(4, dtype=torch.int64), torch.zeros(4), "floating"),
        ({}, torch.zeros(()), torch.zeros(()), r"\(N,\)"),
        ({}, torch.zeros(4), torch.tensor([0, 1, 2, 1]), "but got 2"),
        ({}, torch.zeros(2), torch.tensor([0.5, 1.0]), "but got 0.5"),
        ({"num_labels": 0}, None, None, "num_labels"),
        ({"min_tpr": 1.0}, None, None, "min_tpr"),
        ({"progress": 2}, None, None, r"`progress` to be a number in \[0, 1\]"),
        ({"surrogate": "square"}, None, None, "square"),
    ],
)
def test_refused_by_name(arguments, scores, labels, said):
    with pytest.raises(ArgumentError, match=said):
        double(**arguments)(scores, labels)


@pytest.mark.parametrize(
    ("scores", "progress", "codes", "said"),
    [
        (lambda raw: raw, None, (0, 1), ["progress"]),
        (lambda raw: raw, 0.0, (0, 1), []),
        (lambda raw: raw.sigmoid(), 0.0, (0, 1), ["sigmoid"]),
        (lambda raw: raw.sigmoid(), None, (0, 1), ["progress", "sigmoid"]),
        (lambda raw: raw, 0.0, (-1, 1), ["-1, which means not known, and no 0"]),
    ],
)
def test_advice_comes_once(scores, progress, codes, said):
    raw, loss = torch.randn(20, requires_grad=True), TPAUCLoss(0.7, 0.3)
    if progress is not None:
        loss.progress = progress
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            loss(scores(raw), torch.tensor(codes).repeat(10))
    found = [str(each.message) for each in caught if each.category is TPAUCAdvice]
    assert len(found) == len(said)
    assert all(word in message for word, message in zip(said, found, strict=True))
