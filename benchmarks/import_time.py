"""Seconds that ``import lightning_tpauc`` adds to ``import lightning.pytorch``, which it can't do without.

Fresh interpreters, the statements interleaved so that other load hits all of them alike. ``python -X importtime -c
"import lightning_tpauc"`` shows where the time goes.

    python benchmarks/import_time.py --quick
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

STATEMENTS = {
    "lightning.pytorch": "import lightning.pytorch",
    "lightning_tpauc": "import lightning_tpauc",
    "both": "import lightning.pytorch, lightning_tpauc",
    "module, data, metric": "import lightning.pytorch\n"
    "from lightning_tpauc import STACO, PosNegDataModule, TPAUCModule, TwoWayPartialAUROC",
    "every public name, scikit-learn's base classes too": "import lightning.pytorch\nfrom lightning_tpauc import *",
}


def seconds(statement: str) -> float:
    """Wall-clock time of one statement in a fresh interpreter, without the interpreter's own start."""
    code = f"import time; start = time.perf_counter()\n{statement}\nprint(time.perf_counter() - start)"
    run = subprocess.run(  # noqa: S603  # the statements above
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return float(run.stdout.splitlines()[-1])


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--quick", action="store_true", help="2 repeats, about a minute")
    options = parser.parse_args(args)
    repeats = 2 if options.quick else options.repeats
    times: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(repeats + 1):
        for name, statement in STATEMENTS.items():
            times[name].append(seconds(statement))
    # The first round fills the disk cache and writes bytecode.
    median = {name: statistics.median(values[1:]) for name, values in times.items()}
    base = median["lightning.pytorch"]
    print(f"{time.strftime('%Y-%m-%d')}, Python {sys.version.split()[0]}, {repeats} repeats, median seconds")
    print("| import | median | min | max | more than lightning.pytorch | ratio |")
    print("|---|---|---|---|---|---|")
    for name, values in times.items():
        low, high = min(values[1:]), max(values[1:])
        print(
            f"| {name} | {median[name]:.2f} | {low:.2f} | {high:.2f} "
            f"| {median[name] - base:+.2f} | {median[name] / base:.3f} |"
        )


if __name__ == "__main__":
    main()
