"""The words of a command line: what stands for what, and what has to be known before they are parsed."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import get_loader

from lightning_tpauc import models

_BACKBONE = re.compile(r"--model(\.init_args)?\.backbone")
_SCHEDULER = re.compile(r"--model(\.init_args)?\.lr_scheduler")
_MONITOR = re.compile(r"--model(\.init_args)?\.lr_scheduler(\.init_args)?\.monitor(=.*)?")

_DESCRIPTION = """{what} Classes have options of their own, which `--NAME.help=CLASS` lists, for example
--model.algorithm.help=STACO (with min_tpr and max_fpr), --model.help=TPAUCModule, --model.backbone.help=MLP and
--data.help=LIBSVMDataModule; --print_config shows all of a command line. Environment variables such as
PL_{name}__TRAINER__MAX_EPOCHS=3 stand for options, here --trainer.max_epochs=3."""
_WHAT = {
    "fit": "Train a model.",
    "validate": "Evaluate a checkpoint on the validation data.",
    "test": "Evaluate a checkpoint on the test data.",
    "predict": "Score data with a checkpoint.",
    "compare": "Train several methods on what a configuration of fit describes, and say which one is ahead.",
}


def description(subcommand: str) -> str:
    """What ``--help`` says a subcommand does.

    Example:
        >>> description("predict").partition(".")[0]
        'Score data with a checkpoint'
    """
    return _DESCRIPTION.format(what=_WHAT[subcommand], name=subcommand.upper())


def full_names(words: Sequence[str]) -> list[str]:
    """Full paths in place of short names that would fit several classes.

    ``Linear`` and other backbones of this package are also classes of torch. ``ReduceLROnPlateau`` is torch's, which
    follows the metric that the module chooses, or Lightning's, if a ``monitor`` is given.

    Example:
        >>> full_names(["fit", "--model.backbone", "Linear", "--model.lr_scheduler=ReduceLROnPlateau"])[2:]
        ['lightning_tpauc.models.Linear', '--model.lr_scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau']
    """
    monitored = any(map(_MONITOR.fullmatch, words))
    plateau = "lightning.pytorch.cli" if monitored else "torch.optim.lr_scheduler"
    found = []
    for before, word in zip(["", *words], words, strict=False):
        option, equals, name = word.rpartition("=")
        package = ""
        if _BACKBONE.fullmatch(option or before) and name in models.__all__:
            package = "lightning_tpauc.models."
        elif _SCHEDULER.fullmatch(option or before) and name == "ReduceLROnPlateau":
            package = f"{plateau}."
        found.append(f"{option}{equals}{package}{name}")
    return found


def as_yaml(word: str) -> str:
    """A word whose value Python has written, as YAML writes it; any other word stays.

    Example:
        >>> as_yaml("--margin=None"), as_yaml("--tasks={'a': {'weight': None}}"), as_yaml("--cache_dir=a")
        ('--margin=null', '--tasks={"a": {"weight": null}}', '--cache_dir=a')
    """
    option, equals, text = word.partition("=")
    if not equals or "None" not in text:
        return word
    try:
        return f"{option}={json.dumps(ast.literal_eval(text))}"
    except (SyntaxError, ValueError, TypeError):
        return word


def with_environment(words: Sequence[str], subcommands: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Options of environment variables, in front of those that are given, which win.

    ``PL_FIT__TRAINER__MAX_EPOCHS=3`` stands for ``fit --trainer.max_epochs=3``.

    Example:
        >>> with_environment(["fit", "--config=a.yaml"], ["fit", "test"], {"PL_FIT__TRAINER__MAX_EPOCHS": "3"})
        ['fit', '--trainer.max_epochs=3', '--config=a.yaml']
    """
    at = next((k for k, word in enumerate(words) if word in subcommands), None)
    if at is None:
        return list(words)
    prefix = f"PL_{words[at].upper()}__"
    names = sorted(name for name in environment if name.startswith(prefix))
    names.sort(key=lambda name: name != f"{prefix}CONFIG")  # a file names the classes that options belong to
    options = [(name.removeprefix(prefix).lower().replace("__", "."), environment[name]) for name in names]
    return [*words[: at + 1], *(f"--{option}={value}" for option, value in options), *words[at + 1 :]]


def given_checkpoint(words: Sequence[str], subcommand: str) -> str | None:
    """The ``ckpt_path`` that words, or the files that they name, give last.

    Example:
        >>> given_checkpoint(["test", "--ckpt_path", "a/epoch=1.ckpt"], "test")
        'a/epoch=1.ckpt'
    """
    found: str | None = None
    for option, value in _options(words):
        if option == "--ckpt_path":
            found = None if value == "null" else value
        elif option in {"-c", "--config"}:
            content = _content(value)
            section = content.get(subcommand)
            for part in (content, section if isinstance(section, dict) else {}):
                found = part.get("ckpt_path", found)
    return found


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for before, word in zip(["", *words], words, strict=False):
        option, equals, value = word.partition("=")
        if before in {"-c", "--config", "--ckpt_path"}:
            yield before, word
        elif equals:
            yield option, value


def _content(path: str) -> dict[str, Any]:
    """What a file says; nothing if it can't be read, which the parser reports."""
    try:
        content = get_loader("yaml")(Path(path).read_text(encoding="utf-8"))
    except Exception:  # of the system or of the loader
        return {}
    return content if isinstance(content, dict) else {}
