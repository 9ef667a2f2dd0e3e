"""Reproduce an experiment of the paper: ``python examples/reproduce.py --experiment ijcnn1 --data-root DIR``.

A run that was stopped goes on where it was: give the same command again.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where `examples.paper` is found

from lightning.fabric.utilities.exceptions import MisconfigurationException

from examples.paper.catalog import Experiment, experiments
from examples.paper.report import write_report
from examples.paper.runner import Plan, Results, run_plan
from examples.paper.timing import time_methods
from examples.paper.trial import Options, build_datamodule
from lightning_tpauc.errors import TPAUCError
from lightning_tpauc.extras import import_extra

TIMING = "seconds-per-step"
MODELS = ("CNN3D", "GIN", "ResNet3D")
VOLUME_MODELS = ("CNN3D", "ResNet3D")
LARGEST_SEED = 2**32 - 1


def at_least(least: int, most: float = math.inf) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            end = "" if most == math.inf else f" and at most {most}"
            msg = f"expected a whole number of at least {least}{end}, but got {text!r}"
            raise argparse.ArgumentTypeError(msg)
        return int(text)

    return number


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*experiments(), *(f"{name}-{TIMING}" for name in experiments() if "-" not in name)]
    parser.add_argument("--experiment", required=True, choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--data-root", required=True, help="folder of the data set's files")
    parser.add_argument("--download", action="store_true", help="download them to that folder if they are not there")
    parser.add_argument("--results", default="examples/results", type=Path, help="folder of results")
    parser.add_argument(
        "--cache", default="~/.cache/lightning_tpauc", help="folder of parsed data and of shared starts"
    )
    parser.add_argument("--grid", choices=("paper", "tuned"), default="tuned", help="the paper's grids, or ours")
    parser.add_argument("--methods", nargs="+", help="only these; all by default")
    parser.add_argument("--folds", type=at_least(2), default=5, help="folds of the cross-validation")
    parser.add_argument("--search-folds", type=at_least(1), help="compare settings on the first so many folds only")
    parser.add_argument("--one-search", action="store_true", help="choose on the first rectangle for all of them")
    parser.add_argument("--seeds", type=at_least(0, LARGEST_SEED), nargs="+", default=[0])
    parser.add_argument(
        "--budget", type=at_least(1), help="most settings per method and rectangle, drawn from its grid"
    )
    parser.add_argument(
        "--length", type=at_least(1), help="steps or epochs instead of the paper's; milestones move along"
    )
    parser.add_argument(
        "--model",
        choices=MODELS,
        metavar="NAME",
        help="another backbone of lightning_tpauc.models, such as CNN3D on a CPU",
    )
    parser.add_argument("--processes", type=at_least(1), default=1)
    parser.add_argument("--threads", type=at_least(0), default=1, help="threads per process")
    parser.add_argument("--accelerator", choices=("cpu", "gpu", "auto"), default="cpu")
    parser.add_argument("--only-report", action="store_true", help="write tables and figures of what has finished")
    return parser.parse_args(arguments)


def selected(experiment: Experiment, args: argparse.Namespace) -> Experiment:
    if args.model:
        volumes = experiment.data[0] == "MedMNISTDataModule"
        if args.model != experiment.model[0] and not (volumes and args.model in VOLUME_MODELS):
            sys.exit(
                f"--model {args.model} can't read the data of {experiment.name}, whose model is {experiment.model[0]}."
            )
        experiment = replace(experiment, model=(args.model, {}))
    if args.methods:
        known = {method.name: method for method in experiment.methods}
        unknown = [name for name in args.methods if name not in known]
        if unknown:
            sys.exit(
                f"Expected --methods out of {', '.join(map(repr, known))}, but got {', '.join(map(repr, unknown))}."
            )
        experiment = replace(experiment, methods=tuple(known[name] for name in dict.fromkeys(args.methods)))
    return experiment


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    cache = str(Path(args.cache).expanduser())
    options = Options(args.data_root, cache, args.accelerator, args.threads, download=args.download)
    timing = args.experiment.endswith(TIMING)
    experiment = selected(experiments(args.grid)[args.experiment.removesuffix(f"-{TIMING}")], args)
    if args.download and not args.only_report:  # here, before several processes want the files
        build_datamodule(experiment, options, None, args.folds, (1, 1, 1)).prepare_data()
    import_extra("matplotlib.figure", "plot")  # reports have figures: found out now, not when everything is trained
    command = shlex.join(["python", "examples/reproduce.py", *(sys.argv[1:] if arguments is None else arguments)])
    if timing:
        print(time_methods(experiment, options, args.results, args.length or 100, command).read_text())
        return
    schedule = experiment.schedule.scaled(args.length) if args.length else None
    plan = Plan(
        experiment,
        args.folds,
        args.search_folds or args.folds,
        tuple(dict.fromkeys(args.seeds)),  # a seed given twice would count as two runs
        args.budget,
        schedule,
        args.one_search,
    )
    suffix = "" if args.grid == "tuned" else "-paper-grid"
    folder = args.results / f"{experiment.name}{suffix}"
    store = Results(folder)
    if not args.only_report:
        run_plan(plan, store, options, args.processes)
    print(write_report(plan, store, folder, command).read_text())


def command() -> None:
    try:
        main()
    except (TPAUCError, MisconfigurationException, OSError) as error:
        sys.exit(f"reproduce.py: error: {error}")
    except KeyboardInterrupt:
        sys.exit("reproduce.py: stopped. What had finished is kept: the same command goes on from there.")
    except BrokenProcessPool:
        sys.exit(
            "reproduce.py: error: a process was killed, perhaps because memory ran out. What had finished is kept: "
            "give the same command again, with fewer --processes if need be."
        )


if __name__ == "__main__":
    command()
