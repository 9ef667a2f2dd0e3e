"""The exact objective, its gradient and the exact dual variables for 10,000 positives and 2 million negatives.

python -m benchmarks.exact
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.common import arguments, compare, header, once, verdict
from lightning_tpauc.functional import exact_duals, tpauc_objective


def main(args: list[str] | None = None) -> None:
    options = arguments(__doc__, args, num_pos=10_000, num_neg=2_000_000)
    header(f"exact, {options.num_pos:,} x {options.num_neg:,}")
    generator = torch.Generator().manual_seed(0)
    pos = torch.randn(options.num_pos, generator=generator) + 1.0
    neg = torch.randn(options.num_neg, generator=generator)

    def with_gradient() -> None:
        h_pos, h_neg = pos.clone().requires_grad_(), neg.clone().requires_grad_()
        tpauc_objective(h_pos, h_neg).backward()  # type: ignore[no-untyped-call]

    works: dict[str, Any] = {
        "objective": lambda: tpauc_objective(pos, neg),
        "objective and gradient": with_gradient,
        "dual variables": lambda: exact_duals(pos, neg),
    }
    clocks = compare({name: partial(once, work) for name, work in works.items()}, 5 if options.quick else 15)
    for name, clock in clocks.items():
        verdict(name, clock.median, 0.5, unit=" s")


if __name__ == "__main__":
    main()
