"""Kills runs with SIGKILL at random moments, resumes them from last.ckpt and compares each with an unbroken run.

    python benchmarks/kill_resume.py [--kills 50] [--seed 0]

Each run is killed several times: inside a step, at a stage's end, during validation, while a checkpoint is written, and
anywhere. After every kill last.ckpt must be whole. At the end weights, dual variables, averages, scores remembered,
optimizer, scheduler, position, random generators and all logged curves must equal the unbroken run's, bit for bit.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lightning_tpauc import StageCallback, TPAUCModule
from lightning_tpauc.lightning_fixes.checkpoint_files import AtomicCheckpointIO
from tests.helpers.scripts.survive import Setting, checkpoint_of, differences, run

FORK = multiprocessing.get_context("fork")
MOMENTS = ("anywhere", "in a step", "at a stage's end", "in validation", "while saving")
EPOCHS = 20
SETTINGS = {
    "a checkpoint every 3 steps": Setting(epochs=EPOCHS),
    "every 8, an epoch's last step": Setting(epochs=EPOCHS, every=8, plateau=True),
    "every epoch, max_steps": Setting(epochs=EPOCHS, every=0, ends="steps"),
    "2 workers, validation every 3 steps": Setting(epochs=EPOCHS, workers=2, steps_known=True, validate_every=3),
    "the best validation": Setting(epochs=EPOCHS, every=-1, ends="both"),
    "2 ranks": Setting(epochs=EPOCHS, ranks=2),
}

phase = FORK.RawValue("i", 0)


def mark(cls: type, name: str, moment: str) -> None:
    """Let other processes see when rank 0 is inside a method."""
    method = getattr(cls, name)

    @functools.wraps(method)
    def marked(*args: Any, **kwargs: Any) -> Any:
        outer = phase.value
        if not dist.is_initialized() or dist.get_rank() == 0:
            phase.value = MOMENTS.index(moment)
        try:
            return method(*args, **kwargs)
        finally:
            if not dist.is_initialized() or dist.get_rank() == 0:
                phase.value = outer

    setattr(cls, name, marked)


def child(folder: Path, setting: Setting) -> None:
    """Run in a process group of its own, silently."""
    os.setsid()
    silence = os.open(folder / "output.txt", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    torch.set_num_threads(1)
    mark(TPAUCModule, "training_step", "in a step")
    mark(TPAUCModule, "validation_step", "in validation")
    mark(StageCallback, "_end_stage", "at a stage's end")
    mark(AtomicCheckpointIO, "save_checkpoint", "while saving")
    run(folder, setting)


def run_until(folder: Path, setting: Setting, moment: str | None, delay: float) -> str | None:
    """Start or resume; kill at the first such moment after ``delay`` seconds. Says where the kill hit, if it did."""
    folder.mkdir(parents=True, exist_ok=True)
    phase.value = 0
    process = FORK.Process(target=child, args=(folder, setting))
    process.start()
    hit = None
    if moment is not None:
        time.sleep(delay)
        wanted = MOMENTS.index(moment)
        while process.exitcode is None and wanted not in (0, phase.value):
            process.join(0)
        if process.exitcode is None:
            hit = MOMENTS[phase.value] if wanted else moment
            os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    if hit is None and process.exitcode != 0:
        sys.exit(f"a run failed:\n{(folder / 'output.txt').read_text()[-3000:]}")
    return hit


def main(arguments: list[str] | None = None) -> None:
    """Print a table with a row for each setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    rng = random.Random(args.seed)  # noqa: S311  # moments, not secrets
    share = -(-args.kills // len(SETTINGS))
    total, broken = 0, 0
    print(f"{'setting':<36}{'kills':>6}  {'runs':>4}  {'differences':>11}  where")
    for name, setting in SETTINGS.items():
        with tempfile.TemporaryDirectory() as base:
            unbroken = Path(base, "unbroken")
            began = time.monotonic()
            run_until(unbroken, setting, None, 0)
            length = time.monotonic() - began
            where: Counter[str] = Counter()
            found: list[str] = []
            runs = 0
            while sum(where.values()) < share:
                folder = Path(base, str(runs))
                runs += 1
                for _ in range(5):  # then it may finish
                    moment = MOMENTS[sum(where.values()) % len(MOMENTS)]
                    hit = run_until(folder, setting, moment, rng.uniform(0.05, 0.5) * length)
                    if hit is None or sum(where.values()) >= share:
                        break
                    where[hit] += 1
                    if (path := checkpoint_of(folder)) is not None:
                        torch.load(path, weights_only=True)  # whole
                if hit is not None:
                    run_until(folder, setting, None, 0)
                found += differences(folder, unbroken, setting.ranks)
            total, broken = total + sum(where.values()), broken + len(found)
            places = ", ".join(f"{count} {place}" for place, count in where.most_common())
            print(f"{name:<36}{sum(where.values()):>6}  {runs:>4}  {len(found):>11}  {places}", flush=True)
            for line in found[:10]:
                print(f"    {line}")
    print(f"{total} kills, {broken} differences")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
