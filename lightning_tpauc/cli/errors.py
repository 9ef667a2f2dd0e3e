"""What the command says about options that do not exist, and about errors.

A value of LightningCLI may be one of several types, so jsonargparse reports a misspelt key together with why none of
the types fits, ten lines and more of which one matters. Here the report is taken apart, and that one line is said again
with the closest options that do exist. Whatever is not understood is passed on as it came.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import NamedTuple

from jsonargparse import ArgumentParser
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch.multiprocessing.spawn import ProcessRaisedException

from lightning_tpauc.errors import TPAUCError

__all__ = ("explain", "options_of", "own_message")

_KEY = re.compile(r'Parser key "(?P<name>[^"]+)":\s*(?P<rest>.*)')
_CLASS = re.compile(r"Problem with given class_path '(?P<name>[^']+)':\s*(?P<rest>.*)")
# Why the other types of a union do not fit, which nobody asked for.
_NOISE = re.compile(
    r"Does not validate against any of the Union subtypes|Subtypes: .*|Errors:|Expected a <class 'NoneType'>"
    r"|Given value type: .*"
)
_OPTION = re.compile(r"\b[Oo]ption '(?P<option>[^']+)'(?! is not accepted before)")
_UNRECOGNIZED = re.compile(r"unrecognized arguments: (?P<arguments>.+)")
_FACTORY = re.compile(r"Namespace\(class_path='(?P<name>[^']+)'")
_NO_CLASS = re.compile(r"Expected a dot import path string: (?P<name>\S+)")
_NO_ATTRIBUTE = re.compile(r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'")
_BESIDE = re.compile(r"Given value: (?P<value>\{'class_path': .+\})")
_NO_OPTIONS = re.compile(r"Unexpected config:\s*(?P<text>.*)")
# What jsonargparse takes for the class where an option comes without one, and a class that has options.
_UNNAMED = {"torch.optim.Optimizer": "DampedAdam", "typing.Union": "CosineAnnealingLR"}
_CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")


class _Finding(NamedTuple):
    """One line of a report: the dotted key and the class that it is about, both possibly empty."""

    key: str
    class_path: str
    text: str


def explain(message: str, options: Iterable[str], classes: Sequence[str] = ()) -> str:
    r"""Say in one line which option is not accepted by which class, and which ones are closest.

    Args:
        message: the parser's error message.
        options: dotted options of the parser itself, such as ``"trainer.max_epochs"``.
        classes: short names of classes to suggest where one is misspelt.

    Returns:
        A line for each misspelt option or class; other messages without the lines that say nothing.

    Example:
        >>> explain("Subcommand 'fit' does not accept option 'trainer.max_epoch'", ["trainer.max_epochs", "data"])
        "there is no option 'trainer.max_epoch'; did you mean 'trainer.max_epochs'?"
    """
    findings = list(_findings(message))
    known = list(options)
    said = [_behind(finding.key, line) for finding in findings for line in _misspelt(finding, known, classes)]
    return "\n".join(dict.fromkeys(said)) or _shortened(findings) or message


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


def _misspelt(finding: _Finding, options: Sequence[str], classes: Sequence[str]) -> Iterator[str]:
    key, class_path, text = finding
    if found := _OPTION.search(text):
        factory = _FACTORY.search(text)
        owner = factory["name"] if factory else class_path
        if owner in _UNNAMED:
            yield f"{found['option']!r} is an option of a class: name that first, such as --{key} {_UNNAMED[owner]}"
        elif owner:
            option = found["option"].split(".")[0]
            yield _no_option(f"{owner.rpartition('.')[2]} has", option, options_of(owner), list_all=True)
        else:
            yield _no_option("there is", found["option"], options)
    elif found := _UNRECOGNIZED.search(text):
        names = [word.partition("=")[0] for word in found["arguments"].split() if word.startswith("--")]
        yield from (_no_option("there is", name, [f"--{option}" for option in options]) for name in names)
    elif found := _NO_OPTIONS.fullmatch(text):
        text = found["text"]
        held = "only a comment" if text.startswith("#") else repr(text) if text else "nothing"
        yield f"the file given as --config holds {held}; expected options by name, such as `trainer: {{max_epochs: 3}}`"
    elif found := _NO_CLASS.search(text):
        remedy = "; give its full path, such as 'torch.optim.Adam'"
        yield f"there is no class {found['name']!r}{_closest(found['name'], classes) or remedy}"
    elif found := _NO_ATTRIBUTE.search(text):
        close = _closest(found["name"], dir(importlib.import_module(found["module"])))
        yield f"there is no class {found['name']!r} in {found['module']}{close}"
    elif found := _BESIDE.search(text):
        names = [name for name in _keys(found["value"]) if name not in _CLASS_KEYS]
        yield from (_no_option("beside class_path there is", name, _CLASS_KEYS) for name in names)


def _keys(value: str) -> list[str]:
    """Keys of a dict that was printed; none if it can't be read back."""
    try:
        return list(ast.literal_eval(value))
    except (SyntaxError, ValueError):
        return []


def _no_option(place: str, option: str, options: Sequence[str], *, list_all: bool = False) -> str:
    everything = f"; its options are {', '.join(options)}" if list_all and options else ""
    return f"{place} no option {option!r}{_closest(option, options) or everything}"


def _closest(name: str, names: Sequence[str]) -> str:
    close = get_close_matches(name, names, n=3)
    ratio = [SequenceMatcher(None, name, other).ratio() for other in close]
    close = [other for other, r in zip(close, ratio, strict=True) if r > ratio[0] - 0.1]
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def _shortened(findings: Sequence[_Finding]) -> str:
    """Every line once, behind its key; of the values that did not fit, only the innermost."""
    lines, value_said = [], any("Got value: " in finding.text for finding in findings)
    for key, _, text in findings:
        if text.startswith("Given value: "):
            if value_said:
                continue
            value_said = True
        lines.append(_behind(key, text))
    return "\n".join(dict.fromkeys(lines))


def _behind(key: str, text: str) -> str:
    return f"{key}: {text}" if key else text


def own_message(error: BaseException | None) -> str | None:
    """The message of the :class:`TPAUCError` behind an exception, if there is one.

    jsonargparse raises its own error from one in a constructor, and torch hands an error of a process over as text.
    Lightning says likewise what is wrong with the Trainer's flags, and with ``--ckpt_path best``, and which package a
    logger or a callback lacks.
    """
    if isinstance(error, ValueError) and "(ckpt_path=" in str(error):
        return str(error)
    while error is not None:
        if isinstance(error, (TPAUCError, MisconfigurationException)) or _is_missing_package(error):
            return str(error)
        if isinstance(error, ProcessRaisedException):
            last = str(error).rpartition("\nlightning_tpauc.errors.")[2]
            return last.partition(": ")[2].strip() if "\nTraceback" not in last and ": " in last else None
        error = error.__cause__
    return None


def _is_missing_package(error: BaseException) -> bool:
    return isinstance(error, ModuleNotFoundError) and "pip install" in str(error)
