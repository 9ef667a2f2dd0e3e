"""The optimizer that a module has by default, beside loops over numbers and torch's Adam."""

import math

import pytest
import torch
from torch import nn

from lightning_tpauc import DampedAdam
from lightning_tpauc.errors import ArgumentError
from tests.helpers.tolerances import assert_close


def gradients(shape, steps=30, seed=0):
    """Of weights whose inputs differ in scale by up to a thousand."""
    generator = torch.Generator().manual_seed(seed)
    scales = 10 ** (3 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1.5)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) * scales for _ in range(steps)]


def trained(optimizer_class, steps, **options):
    weight = nn.Parameter(torch.zeros_like(steps[0]))
    optimizer = optimizer_class([weight], **options)
    for gradient in steps:
        weight.grad = gradient.clone()
        optimizer.step()
    return weight.detach()


def by_hand(steps, rate, betas, eps, decay=0.1):
    """One number at a time; the first index counts outputs."""
    rows = [g.reshape(len(g), -1).tolist() for g in steps]
    height, width = len(rows[0]), len(rows[0][0])
    weights, means, squares = ([[0.0] * width for _ in range(height)] for _ in range(3))
    for count, gradient in enumerate(rows, start=1):
        for i in range(height):
            for j in range(width):
                means[i][j] = betas[0] * means[i][j] + (1 - betas[0]) * gradient[i][j]
                squares[i][j] = betas[1] * squares[i][j] + (1 - betas[1]) * gradient[i][j] ** 2
            roots = [math.sqrt(square / (1 - betas[1] ** count)) for square in squares[i]]
            for j in range(width):
                divisor = min(max(roots), 3 * roots[j]) + eps
                weights[i][j] *= 1 - rate * decay
                weights[i][j] -= rate * means[i][j] / (1 - betas[0] ** count) / divisor
    return torch.tensor(weights, dtype=torch.float64).reshape(steps[0].shape)


@pytest.mark.parametrize("shape", [(1, 6), (4, 5), (3, 2, 2, 2), (3, 1)])
@pytest.mark.parametrize(("betas", "eps"), [((0.9, 0.999), 1e-8), ((0.5, 0.9), 1e-2), ((0.0, 0.0), 1e-8)])
def test_steps_are_those_of_a_loop_over_numbers(shape, betas, eps):
    steps = gradients(shape)
    expected = by_hand(steps, 0.01, betas, eps)
    assert_close(trained(DampedAdam, steps, lr=0.01, betas=betas, eps=eps), expected, "float64")


def test_inputs_that_say_nothing_are_learnt_more_slowly_than_by_adam():
    """Few positives, many inputs, one of which matters: the share of the score that is noise."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 100, generator=generator)
    y = (x[:, 0] > 0).float()

    def noise(optimizer_class):
        weight = nn.Parameter(torch.zeros(1, 100))
        optimizer = optimizer_class([weight], lr=0.01)
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits((x @ weight.T)[:, 0], y).backward()
            optimizer.step()
        return float((weight[0, 1:].norm() / weight[0, 0].abs()).detach())

    assert noise(DampedAdam) < 0.7 * noise(torch.optim.Adam)


def test_a_state_that_was_loaded_goes_on_to_the_last_bit():
    steps = [g.float() for g in gradients((4, 5))]

    def run(break_at):
        weight = nn.Parameter(torch.zeros(4, 5))
        optimizer = DampedAdam([weight], lr=0.01)
        for number, gradient in enumerate(steps):
            if number == break_at:
                saved, optimizer = optimizer.state_dict(), DampedAdam([weight], lr=7.0)
                optimizer.load_state_dict(saved)
            weight.grad = gradient.clone()
            optimizer.step()
        return weight.detach()

    assert torch.equal(run(break_at=11), run(break_at=None))


def test_groups_closures_frozen_weights_and_rates_in_tensors():
    fast, slow, frozen = (nn.Parameter(torch.ones(2, 3)) for _ in range(3))
    rate = torch.tensor(0.1)
    optimizer = DampedAdam([{"params": [fast, frozen], "lr": rate}, {"params": [slow]}], lr=0.01, weight_decay=0.0)

    def closure():
        loss = (fast * 2 + slow * 2).sum()
        loss.backward()
        return loss

    assert float(optimizer.step(closure)) == 24.0
    assert_close(fast.detach(), torch.full((2, 3), 0.9), "float32")
    assert_close(slow.detach(), torch.full((2, 3), 0.99), "float32")
    assert torch.equal(frozen.detach(), torch.ones(2, 3))
    rate.fill_(0.0)
    before = fast.detach().clone()
    optimizer.step()
    assert torch.equal(fast.detach(), before)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"lr": -1.0}, "lr"),
        ({"lr": math.nan}, "lr"),
        ({"betas": (1.0, 0.9)}, "betas"),
        ({"eps": -1e-8}, "eps"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"weight_decay": torch.tensor(math.nan)}, "weight_decay"),
        *(({"lr": rate}, "lr") for rate in (torch.tensor(-0.1), torch.tensor([0.1]))),
    ],
)
@pytest.mark.parametrize("in_group", [False, True])
def test_values_out_of_range(options, name, in_group):
    parameters = [nn.Parameter(torch.zeros(1))]
    with pytest.raises(ArgumentError, match=f"Expected `{name}` to be a number"):
        DampedAdam([{"params": parameters, **options}]) if in_group else DampedAdam(parameters, **options)


SHAPES = [(3, 4), (5,), (2, 3, 2, 2), (4, 1), ()]


def trained_together(make, steps=20, dtype=torch.float64):
    """Parameters of several shapes after steps with the same random gradients."""
    generator = torch.Generator().manual_seed(1)
    weights = [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in SHAPES]
    optimizer = make(weights)
    for _ in range(steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator, dtype=dtype)
        optimizer.step()
    return [weight.detach() for weight in weights]


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.3}, {"maximize": True}, {"betas": (0.5, 0.0)}])
def test_parameters_move_together_as_one_by_one(options):
    expected = trained_together(lambda p: DampedAdam(p, lr=0.01, foreach=False, **options))
    together = trained_together(lambda p: DampedAdam(p, lr=0.01, foreach=True, **options))
    for found, one in zip(together, expected, strict=True):
        assert torch.equal(found, one)
    of_device = trained_together(lambda p: DampedAdam(p, lr=torch.tensor(0.01), capturable=True, **options))
    for found, one in zip(of_device, expected, strict=True):  # the counts of steps are float32 there
        assert_close(found, one, "float32")


def test_weights_decay_as_those_of_adamw():
    """Outputs with one weight move as AdamW's, biases as Adam's. Without gradients a weight shrinks by 1 - lr decay."""
    for shape, decay in (((4, 1), 0.3), ((5,), 0.0), ((), 0.0)):
        steps = gradients(shape)
        expected = trained(torch.optim.AdamW, steps, lr=0.01, weight_decay=decay)
        assert_close(trained(DampedAdam, steps, lr=0.01, weight_decay=0.3), expected, "float64")
    still = nn.Parameter(torch.ones(2, 2))
    optimizer = DampedAdam([{"params": [still], "weight_decay": 0.5}], lr=0.1)
    for _ in range(3):
        still.grad = torch.zeros_like(still)
        optimizer.step()
    assert_close(still.detach(), torch.full((2, 2), 0.95**3), "float32")


@pytest.mark.parametrize("other", [torch.optim.Adam, torch.optim.AdamW])
def test_states_are_exchanged_with_torch(other):
    weight = nn.Parameter(torch.ones(1, 1))  # an output with one weight moves as by Adam
    ours = DampedAdam([weight], lr=0.01, weight_decay=0.0)
    theirs = other([weight], lr=0.02, betas=(0.8, 0.9), weight_decay=0.0)
    moved = []
    for first, second in ((ours, theirs), (theirs, ours)):
        for optimizer in (first, second):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        second.load_state_dict(first.state_dict())
        before = weight.detach().clone()
        weight.grad = torch.ones_like(weight)
        second.step()
        moved.append(float(before - weight.detach()))
        assert second.param_groups[0]["betas"] == ours.param_groups[0]["betas"]
    assert_close(torch.tensor(moved), torch.full((2,), 0.01), "float32")


@pytest.mark.parametrize(("other", "options"), [("Adam", {"amsgrad": True}), ("Adam", {"weight_decay": 0.1})])
def test_a_state_that_means_something_else_is_refused(other, options):
    weight = nn.Parameter(torch.ones(1))
    saved = getattr(torch.optim, other)([weight], **options).state_dict()
    with pytest.raises(ArgumentError, match="load a state without them, or of AdamW"):
        DampedAdam([weight]).load_state_dict(saved)


def test_the_decay_of_a_state_is_taken_and_none_where_it_names_none():
    weight = nn.Parameter(torch.ones(1))
    optimizer, saved = DampedAdam([weight]), torch.optim.AdamW([weight], lr=0.1, weight_decay=0.25).state_dict()
    optimizer.load_state_dict(saved)
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]) == (0.1, 0.25)
    adam = torch.optim.Adam([weight])
    adam.load_state_dict(DampedAdam([weight]).state_dict())
    assert adam.param_groups[0]["decoupled_weight_decay"]
    del saved["param_groups"][0]["weight_decay"]
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["weight_decay"] == 0.0


@pytest.mark.slow
def test_a_compiled_step_is_the_same():
    def compiled(weights):
        optimizer = DampedAdam(weights, lr=0.01)
        optimizer.step = torch.compile(optimizer.step, backend="aot_eager")
        return optimizer

    expected = trained_together(lambda p: DampedAdam(p, lr=0.01), steps=3)
    for found, one in zip(trained_together(compiled, steps=3), expected, strict=True):
        assert_close(found, one, "float32")


def test_sparse_and_complex_gradients_are_refused():
    table, turn = nn.Embedding(4, 2, sparse=True), nn.Linear(1, 2, dtype=torch.cfloat)
    table(torch.tensor([1])).sum().backward()
    turn(torch.ones(1, 1, dtype=torch.cfloat)).abs().sum().backward()
    for layer, remedy in ((table, "embeddings with `sparse=False`"), (turn, "`view_as_complex` of real weights")):
        with pytest.raises(ArgumentError, match=f"takes real, dense gradients: use {remedy}"):
            DampedAdam(layer.parameters()).step()
