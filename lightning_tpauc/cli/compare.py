"""``lightning-tpauc compare``: a comparison of the methods on what a configuration of ``fit`` describes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import Callback, LightningDataModule, Trainer

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.cli.errors import options_of
from lightning_tpauc.comparison import Comparison
from lightning_tpauc.comparison.plan import Run
from lightning_tpauc.comparison.setup import as_list, kept_callbacks, left_out
from lightning_tpauc.errors import ArgumentError
from lightning_tpauc.module import TPAUCModule


class ComparingTrainer(Trainer):
    """Lightning's Trainer, and beside it what the command's ``compare`` takes."""

    def compare(
        self,
        model: Any = None,
        datamodule: Any = None,
        folder: str = "comparison",
        methods: list[str] | None = None,
        trials: int = 1,
        seeds: int = 1,
        folds: int | None = None,
        processes: int = 1,
        ckpt_path: str | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train several methods on the same data and say which one is ahead.

        Args:
            model: replaced by the command's.
            datamodule: replaced by the command's.
            folder: Where report.html, tables and pictures go; the same command goes on there after a kill.
            methods: Names of methods. Default: cross-entropy, balanced cross-entropy, STACO, and PAUCI for one label.
            trials: Learning rates of each method, the default and others around it, chosen on validation data.
            seeds: Repetitions with other initial weights and batches.
            folds: Folds of a cross-validation, each of them a repetition.
            processes: Trainings that run side by side, each in a process and a thread of its own, on CPUs.
            ckpt_path: Not used: all methods start from the same untrained weights, or from the model's init_from.
            weights_only: Not used.
        """


class ConfigSetup:
    """Makes modules, data and Trainers of a configuration; a :class:`~lightning_tpauc.comparison.setup.Setup`."""

    def __init__(self, config: Namespace, instantiate: Callable[[Namespace], Any]) -> None:
        if config.get("ckpt_path"):
            msg = (
                "`compare` takes no `ckpt_path`: all methods start from the same weights. Give trained ones as "
                "`--model.init_from`."
            )
            raise ArgumentError(msg)
        if "algorithm" not in options_of(config.model.class_path):
            msg = f"`compare` replaces the model's `algorithm`, but {config.model.class_path} takes no such argument."
            raise ArgumentError(msg)
        self._config, self._instantiate = config, instantiate
        self.trainer_options = config.trainer.as_dict()
        self._first_seed = first_seed(config)
        self._data: tuple[Run, LightningDataModule] | None = None

    def module(self, algorithm: Algorithm, options: Mapping[str, Any]) -> TPAUCModule:
        """The configuration's model with another algorithm."""
        config = copy.deepcopy(self._config)
        known = options_of(config.model.class_path)
        for name, value in {"algorithm": algorithm, **options}.items():
            config.model[f"{'init_args' if name in known else 'dict_kwargs'}.{name}"] = value
        module: TPAUCModule = self._instantiate(config).model
        return module

    def datamodule(self, run: Run, num_folds: int | None) -> LightningDataModule:
        """The configuration's data, of a fold and with a seed: read once for all methods."""
        if self._data is not None and self._data[0] == run:
            return self._data[1]
        config = copy.deepcopy(self._config)
        given, known = config.data.get("init_args") or {}, options_of(config.data.class_path)
        values: dict[str, Any] = {}
        if "seed" in known:
            values["seed"] = int(given.get("seed") or 0) + run.seed - self._first_seed
        if num_folds is not None:
            values.update(num_folds=num_folds, fold=run.fold, val_fraction=None)
        if not values.keys() <= set(known):
            msg = f"`folds` needs data that can be cut into folds, but {config.data.class_path} takes no `num_folds`."
            raise ArgumentError(msg)
        for name, value in values.items():
            config.data[f"init_args.{name}"] = value
        self._data = run, self._instantiate(config).data
        return self._data[1]

    def trainer(self, callbacks: list[Callback], options: Mapping[str, Any]) -> Trainer:
        """The configuration's Trainer, without callbacks that end, save or show a training."""
        arguments = dict(self._instantiate(copy.deepcopy(self._config)).trainer)
        kept = kept_callbacks(as_list(arguments.get("callbacks")))[0]
        return Trainer(**{**arguments, **options, "callbacks": [*kept, *callbacks]})

    def identity(self) -> dict[str, Any]:
        """The configuration, without what is replaced."""
        shown = {name: self._config[name].as_dict() for name in ("model", "data", "trainer")}
        shown["model"].get("init_args", {}).pop("algorithm", None)
        for name in ("logger", "default_root_dir", "enable_progress_bar"):
            shown["trainer"].pop(name, None)
        return {name: repr(sorted(_flat(value).items())) for name, value in shown.items()}

    def notes(self) -> list[str]:
        """What the comparison does without."""
        given = as_list(self._instantiate(copy.deepcopy(self._config)).trainer.get("callbacks"))
        return left_out(kept_callbacks(given)[1], self.trainer_options)

    def close(self) -> None:
        """Nothing was changed."""


def _flat(value: Any, name: str = "") -> dict[str, str]:
    if isinstance(value, Mapping):
        return {k: v for key, inner in value.items() for k, v in _flat(inner, f"{name}.{key}").items()}
    return {name: repr(value)}


def first_seed(config: Namespace) -> int:
    """The configuration's seed, 0 if it has none.

    Example:
        >>> first_seed(Namespace(seed_everything=7)), first_seed(Namespace(seed_everything=None))
        (7, 0)
    """
    seed = config.get("seed_everything")
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else 0


def run_comparison(config: Namespace, instantiate: Callable[[Namespace], Any], model: TPAUCModule) -> str:
    """Run the comparison that the command line describes.

    Returns:
        The report's text, and where the page lies.
    """
    if config.get("data") is None:
        msg = "`compare` needs `--data`: name a data module."
        raise ArgumentError(msg)
    algorithm = model.algorithm
    options = {name: config.get(name) for name in ("methods", "trials", "seeds", "folds", "processes")}
    comparison = Comparison(
        ConfigSetup(config, instantiate),
        config.folder,
        (algorithm.min_tpr, algorithm.max_fpr),
        rectangles=config.model.init_args.get("rectangles") or (),
        first_seed=first_seed(config),
        **options,
    )
    report = comparison.run()
    return f"{report}\n\n{Path(report.folder) / 'report.html'} shows the curves, too."
