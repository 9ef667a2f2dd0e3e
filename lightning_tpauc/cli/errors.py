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
_OPTION = re.compile(r"[Oo]ption '(?P<name>[^']+)'(?! is not accepted before)")
_UNRECOGNIZED = re.compile(r"unrecognized arguments: .*?(?P<name>--[\w.]+)")
_FACTORY = re.compile(r"Namespace\(class_path='(?P<name>[^']+)'")
_NO_CLASS = re.compile(r"Expected a dot import path string: (?P<name>\S+)")
_NO_ATTRIBUTE = re.compile(r"module '[\w.]+' has no attribute '\w+'")
_WRONG_VALUE = re.compile(r"Expected a .*Got value: .*")


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
        "there is no option 'trainer.max_epoch'; did you mean 'trainer.max_epochs'?"
    """
    findings, known = list(_findings(message)), list(options)
    telling = [line for finding in findings for line in [_telling(finding, known, classes)] if line]
    if not telling:  # of the values that did not fit, the innermost comes first
        values = [finding for finding in findings if finding.text.startswith("Given value: ")]
        kept = [finding for finding in findings if finding not in values[1:]]
        telling = [f"{finding.key}: {finding.text}" if finding.key else finding.text for finding in kept]
    return "\n".join(dict.fromkeys(telling)) or message


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


def _telling(finding: _Finding, options: Sequence[str], classes: Sequence[str]) -> str:
    """What a line says of an option, a class or a value; nothing if it says something else."""
    key, class_path, text = finding
    said = ""
    if found := _OPTION.search(text):
        factory = _FACTORY.search(text)
        owner = factory["name"] if factory else class_path
        if owner in ("torch.optim.Optimizer", "typing.Union"):  # what stands for a class that was not named
            said = f"{found['name']!r} is an option of a class: name the class first, as --{key} CLASS"
        elif owner:
            names = options_of(owner)
            closest = _closest(found["name"].split(".")[0], names) or f"; its options are {', '.join(names)}"
            said = f"{owner.rpartition('.')[2]} has no option {found['name']!r}{closest}"
        else:
            said = f"there is no option {found['name']!r}{_closest(found['name'], options)}"
    elif found := _UNRECOGNIZED.search(text):
        said = f"there is no option {found['name']!r}{_closest(found['name'], [f'--{option}' for option in options])}"
    elif found := _NO_CLASS.search(text):
        closest = _closest(found["name"], classes) or "; give its full path, such as 'torch.optim.Adam'"
        said = f"there is no class {found['name']!r}{closest}"
    elif found := _NO_ATTRIBUTE.search(text) or _WRONG_VALUE.fullmatch(text):
        said = found[0]
    return f"{key}: {said}" if key and said else said


def _closest(name: str, names: Sequence[str]) -> str:
    close = get_close_matches(name, names, n=2, cutoff=0.7)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


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
