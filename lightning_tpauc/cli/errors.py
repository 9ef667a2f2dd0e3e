"""What the command says about options that do not exist, and about errors that the user can mend.

A value of LightningCLI may be one of several types, so jsonargparse reports a misspelt key together with why none of
the types fits, ten lines and more of which one matters. That one is kept, with the closest options that do exist.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from jsonargparse import ArgumentParser
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.multiprocessing.spawn import ProcessRaisedException

from lightning_tpauc.errors import TPAUCError

_KEY = re.compile(r'Parser key "(?P<name>[^"]+)":\s*(?P<rest>.*)')
_CLASS = re.compile(r"Problem with given class_path '(?P<name>[^']+)':\s*(?P<rest>.*)")
# Why the other types of a union do not fit, which nobody asked for.
_NOISE = re.compile(
    r"Does not validate against any of the Union subtypes|Subtypes: .*|Errors:|Expected a <class 'NoneType'>"
    r"|Given value type: .*|Expected a path but .*"
)
# What is misspelt, or a value that does not fit.
_TELLING = re.compile(
    r"[Oo]ption '(?P<option>[^']+)'(?! is not accepted before)|unrecognized arguments: .*?(?P<word>--[\w.]+)"
    r"|import path string: (?P<name>\S+)|module '[\w.]+' has no attribute '\w+'|Expected a .*Got value: .*"
)
_FACTORY = re.compile(
    r"Type .* expects a function.*: (?P<text>Option .*)\. Got value: Namespace\(class_path='(?P<name>[^']+)'"
)


class _Finding(NamedTuple):
    """One line of a report: the dotted key and the class that it is about, both possibly empty."""

    key: str
    class_path: str
    text: str


def explain(message: str, options: Iterable[str], classes: Sequence[str] = ()) -> str:
    """The lines of a parser's message that matter, with the closest options or classes where one is misspelt.

    Args:
        message: the parser's error message.
        options: dotted options of the parser itself, such as ``"trainer.max_epochs"``.
        classes: short names of classes to suggest where one is misspelt.

    Example:
        >>> explain("Subcommand 'fit' does not accept option 'trainer.max_epoch'", ["trainer.max_epochs", "data"])
        "Subcommand 'fit' does not accept option 'trainer.max_epoch'; did you mean 'trainer.max_epochs'?"
    """
    findings, known = list(_findings(message)), list(options)
    telling = [finding for finding in findings if _TELLING.search(finding.text)]
    if not telling:  # of the values that did not fit, the innermost comes first
        values = [finding for finding in findings if finding.text.startswith("Given value: ")]
        telling = [finding for finding in findings if finding not in values[1:]]
    lines = [f"{key}: {text}" if key else text for key, text in (_closest(f, known, classes) for f in telling)]
    return "\n".join(dict.fromkeys(lines)) or message


def _closest(finding: _Finding, options: Sequence[str], classes: Sequence[str]) -> tuple[str, str]:
    """The key and the text, and what was meant."""
    key, owner, text = finding
    if factory := _FACTORY.match(text):
        owner, text = factory["name"], factory["text"]
    found = _TELLING.search(text)
    name = next((word for word in found.groups() if word), "") if found else ""
    names = [f"--{option}" for option in options] if name.startswith("--") else list(options)
    if found and found["name"]:
        names = list(classes)
    elif owner and name:
        text, names = f"{owner.rpartition('.')[2]}: {text}", options_of(owner)
    close = get_close_matches(name, names, n=2, cutoff=0.7) if name else []
    meant = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
    if name and owner and names and not close:
        meant = f"; its options are {', '.join(names)}"
    return key, text + meant


def _findings(message: str) -> Iterator[_Finding]:
    """The lines of a report that are not noise; deeper keys and classes are indented under those that hold them."""
    above: list[tuple[int, str, str]] = []
    for line in filter(str.strip, message.splitlines()):
        indent, text = len(line) - len(line.lstrip()), line.strip().removeprefix("- ")
        while above and above[-1][0] >= indent:
            above.pop()
        for kind, pattern in (("key", _KEY), ("class", _CLASS)):
            if found := pattern.match(text):
                above.append((indent, kind, found["name"]))
                text = found["rest"]
        if text and not _NOISE.fullmatch(text):
            key = ".".join(name for _, kind, name in above if kind == "key")
            class_path = next((name for _, kind, name in reversed(above) if kind == "class"), "")
            yield _Finding(key, class_path, text)


def options_of(class_path: str) -> list[str]:
    """Names of the arguments that a class takes in a configuration; empty if it can't be imported.

    Example:
        >>> options_of("lightning_tpauc.models.Linear")
        ['num_features', 'bias', 'num_labels']
    """
    module, _, name = class_path.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), name)
        added = ArgumentParser(exit_on_error=False).add_class_arguments(cls, "init", fail_untyped=False)
    except (ImportError, AttributeError, TypeError, ValueError):
        return []
    return list(dict.fromkeys(key.split(".")[1] for key in added))


def own_message(error: BaseException | None) -> str | None:
    """What to say instead of a traceback, if the user can mend an error.

    These are the package's own errors and Lightning's about the Trainer's flags and checkpoints, a package that is
    missing, and a file or folder that can't be read or written. jsonargparse raises its own error from one in a
    constructor, and torch hands an error of a process over as text.
    """
    if isinstance(error, ValueError) and "(ckpt_path=" in str(error):
        return str(error)
    while error is not None:
        if isinstance(error, (TPAUCError, MisconfigurationException)):
            return str(error)
        if isinstance(error, ModuleNotFoundError) and "pip install" in str(error):
            return str(error)
        if isinstance(error, OSError) and error.errno and error.strerror:
            place = "" if error.filename is None else f" {str(error.filename)!r}"
            return f"Can't read or write{place}: {error.strerror}."
        if isinstance(error, ProcessRaisedException):
            last = str(error).rpartition("\nlightning_tpauc.errors.")[2]
            return last.partition(": ")[2].strip() if "\nTraceback" not in last and ": " in last else None
        error = error.__cause__
    return None
