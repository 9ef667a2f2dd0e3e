"""Pairwise terms with their gradients against the forward and backward pass of LibAUC's two-way partial AUC loss.

Dense methods form the S x B matrix; for squared hinge, hinge and square this package sorts instead where that's faster.

    python -m benchmarks.pairwise
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import arguments, compare, header, import_libauc, once, repeat, verdict
from lightning_tpauc.algorithms import STACO
from lightning_tpauc.functional import evaluate_pairs, pairwise_terms


def draw(num_pos: int, num_neg: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    pos = torch.randn(num_pos, generator=generator) + 0.5
    neg = torch.randn(num_neg, generator=generator)
    return pos, neg, torch.rand(num_pos, generator=generator), torch.rand(num_pos, generator=generator)


def ours(num_pos: int, num_neg: int, method: str = "auto") -> Callable[[], Any]:
    args = draw(num_pos, num_neg)
    return lambda: pairwise_terms(*args, surrogate="squared_hinge", margin=0.5, method=method)


def ours_with_autograd(num_pos: int, num_neg: int) -> Callable[[], Any]:
    pos, neg, s, y = draw(num_pos, num_neg)

    def work() -> None:
        h_pos, h_neg = pos.clone().requires_grad_(), neg.clone().requires_grad_()
        pairs = evaluate_pairs(h_pos, h_neg, s, surrogate="squared_hinge", margin=0.5)
        pairs.weighted_sum(y).backward()  # type: ignore[no-untyped-call]

    return work


def libauc(num_pos: int, num_neg: int) -> Callable[[], Any]:
    pos, neg, _, _ = draw(num_pos, num_neg)
    loss_class, _, _ = import_libauc()
    loss = loss_class(data_length=num_pos, device="cpu")
    target = torch.cat([torch.ones(num_pos, 1), torch.zeros(num_neg, 1)])
    index = torch.cat([torch.arange(num_pos), torch.full((num_neg,), -1)])

    def work() -> None:
        scores = torch.cat([pos, neg])[:, None].requires_grad_()
        loss(scores, target, index).backward()

    return work


def staco(num_pos: int, num_neg: int, share: bool) -> Callable[[], Any]:
    """A call of STACO and its backward pass, on given scores."""
    pos, neg, _, _ = draw(num_pos, num_neg)
    algorithm, index = STACO(share_negatives=share, dual_init="zeros"), torch.arange(num_pos)
    algorithm.setup(num_pos)

    def work() -> None:
        h_pos, h_neg = pos.clone().requires_grad_(), neg.clone().requires_grad_()
        algorithm(h_pos, h_neg, None if share else neg, index).backward()  # type: ignore[no-untyped-call]

    return work


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args)
    header("pairwise")
    print("\n### 32 x 32")
    inner = 200
    sides = {
        "terms and gradients": repeat(ours(32, 32), inner),
        "loss through autograd": repeat(ours_with_autograd(32, 32), inner),
        "LibAUC forward and backward": repeat(libauc(32, 32), inner),
    }
    clocks = compare(sides, 5 if options.quick else 21, 1e6, "us")
    slow = clocks["LibAUC forward and backward"]
    verdict("LibAUC / terms and gradients", slow.over(clocks["terms and gradients"]), 2.0, at_least=True)
    verdict("LibAUC / loss through autograd", slow.over(clocks["loss through autograd"]), 2.0, at_least=True)
    print("\n### 1024 x 8192")
    fast, slow_work = ours(1024, 8192), libauc(1024, 8192)
    sides = {"terms and gradients": repeat(fast, 10), "LibAUC forward and backward": lambda: once(slow_work)}
    clocks = compare(sides, 3 if options.quick else 9)
    names = list(sides)
    verdict("LibAUC / terms and gradients", clocks[names[1]].over(clocks[names[0]]), 150.0, at_least=True)
    print("\n### 4096 x 65536")
    clocks = compare({"terms and gradients": repeat(ours(4096, 65536), 2)}, 3 if options.quick else 9)
    verdict("4096 x 65536", 1e3 * clocks["terms and gradients"].median, 50.0, unit=" ms")
    for num_pos, num_neg, inner in ((32, 32, 200), (256, 1024, 30), (1024, 8192, 8)):
        print(f"\n### STACO, {num_pos} x {num_neg}: one batch of negatives, whose pairs are evaluated once, or two")
        sides = {
            "shared": repeat(staco(num_pos, num_neg, True), inner),
            "two": repeat(staco(num_pos, num_neg, False), inner),
        }
        compare(sides, 3 if options.quick else 9, 1e6, "us")


if __name__ == "__main__":
    main()
