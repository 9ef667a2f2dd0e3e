"""The words of a command line: what stands for what, and what has to be known before they are parsed."""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import get_loader

from lightning_tpauc import models
from lightning_tpauc.errors import ArgumentError

_BACKBONE = re.compile(r"--model(\.init_args)?\.backbone")
_SCHEDULER = re.compile(r"--model(\.init_args)?\.lr_scheduler")
_MONITOR = re.compile(r"--model(\.init_args)?\.lr_scheduler(\.init_args)?\.monitor(=.*)?")


def full_names(words: Sequence[str]) -> list[str]:
    """Full paths in place of short names that would fit several classes.

    ``Linear`` and other backbones of this package are also classes of torch. ``ReduceLROnPlateau`` is torch's, which
    follows the metric that the module chooses, or Lightning's, if a ``monitor`` is given.

    Example:
        >>> full_names(["fit", "--model.backbone", "Linear", "--model.lr_scheduler=ReduceLROnPlateau"])[2:]
        ['lightning_tpauc.models.Linear', '--model.lr_scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau']
    """
    plateau = "lightning.pytorch.cli" if any(map(_MONITOR.fullmatch, words)) else "torch.optim.lr_scheduler"
    renamed = []
    for before, word in zip(["", *words], words, strict=False):
        option, equals, name = word.rpartition("=")
        package = ""
        if _BACKBONE.fullmatch(option or before) and name in models.__all__:
            package = "lightning_tpauc.models."
        elif _SCHEDULER.fullmatch(option or before) and name == "ReduceLROnPlateau":
            package = f"{plateau}."
        renamed.append(f"{option}{equals}{package}{name}")
    return renamed


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


def with_environment(words: Sequence[str], subcommand: str | None, environment: Mapping[str, str]) -> list[str]:
    """Options of environment variables, in front of those that are given, which win.

    ``PL_FIT__TRAINER__MAX_EPOCHS=3`` stands for ``fit --trainer.max_epochs=3``.

    Example:
        >>> with_environment(["fit", "--config=a.yaml"], "fit", {"PL_FIT__TRAINER__MAX_EPOCHS": "3"})
        ['fit', '--trainer.max_epochs=3', '--config=a.yaml']
    """
    if subcommand is None:
        return list(words)
    at, prefix = words.index(subcommand) + 1, f"PL_{subcommand.upper()}__"
    names = sorted(name for name in environment if name.startswith(prefix))
    names.sort(key=lambda name: name != f"{prefix}CONFIG")  # a file names the classes that options belong to
    options = [(name.removeprefix(prefix).lower().replace("__", "."), environment[name]) for name in names]
    return [*words[:at], *(f"--{option}={value}" for option, value in options), *words[at:]]


def given_checkpoint(words: Sequence[str], subcommand: str) -> str | None:
    """The ``ckpt_path`` that words, or else the files that they name, give last."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--ckpt_path")
    parser.add_argument("-c", "--config", action="append", default=[])
    try:
        known = parser.parse_known_args(words)[0]
    except argparse.ArgumentError:  # the parser of all options says it
        return None
    paths = [known.ckpt_path]
    for path in known.config:
        content = _content(path)
        section = content.get(subcommand)
        paths += [part.get("ckpt_path") for part in (section, content) if isinstance(part, dict)]
    return next((path for path in (paths[0], *reversed(paths[1:])) if path not in (None, "null")), None)


def _content(path: str) -> dict[str, Any]:
    """What a file says; nothing if it can't be parsed, which the parser reports."""
    try:
        content = Path(path).read_bytes()
    except OSError:
        return {}
    if content.startswith(b"PK\x03\x04") or b"\0" in content:
        msg = f"`--config {path}` is no text file of options. A checkpoint is given as `--ckpt_path`."
        raise ArgumentError(msg)
    try:
        options = get_loader("yaml")(content.decode())
    except Exception:  # of the loader
        return {}
    return options if isinstance(options, dict) else {}
