"""Breaks runs of random settings off at random moments, resumes them and compares each with an unbroken run.

    python benchmarks/random_resume.py [--runs 200] [--first-seed 0]

A setting is an algorithm with its surrogate, an optimizer, a scheduler, a precision, a kind of network and of data,
stages, limits, and the moments of checkpoint and break. Everything that a run leaves and logs must equal the unbroken
run's, bit for bit; ``inexact`` counts those that said that they would not.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.helpers.scripts.random_runs import compare, draw


def main(arguments: list[str] | None = None) -> None:
    """Print each setting that differs, then the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0)
    args = parser.parse_args(arguments)
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    counts: Counter[str] = Counter()
    for seed in range(args.first_seed, args.first_seed + args.runs):
        setting = draw(seed)
        with tempfile.TemporaryDirectory() as folder:
            outcome = compare(setting, Path(folder))
        counts[outcome.kind] += 1
        counts["resumed"] += outcome.resumed
        if outcome.kind == "differs":
            print(f"differs: {setting}\n    {', '.join(outcome.why[:12])}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    sys.exit(counts["differs"] > 0)


if __name__ == "__main__":
    main()
