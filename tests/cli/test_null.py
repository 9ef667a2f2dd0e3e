"""``null`` is taken wherever an argument may be ``None``, on the command line as in a file."""

import inspect
import typing

import pytest
import yaml
from lightning.pytorch import Callback, LightningDataModule
from torch import nn

import lightning_tpauc
from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.cli.command import _CLASSES, TPAUCCLI

#: Where a class of each kind is given.
PLACES = {
    lightning_tpauc.TPAUCModule: "model",
    Algorithm: "model.algorithm",
    nn.Module: "model.backbone",
    LightningDataModule: "data",
    Callback: "trainer.callbacks",
}
REQUIRED = {"data": ["--data", "PosNegDataModule"], "model": ["--model", "TPAUCModule"]}


def place_of(cls):
    return next((place for kind, place in PLACES.items() if issubclass(cls, kind)), None)


def may_be_none(cls):
    """Names of a class's arguments whose annotation has None."""
    hints = typing.get_type_hints(cls.__init__)
    named = [p.name for p in inspect.signature(cls).parameters.values() if p.kind is not p.VAR_KEYWORD]
    return [name for name in named if type(None) in typing.get_args(hints.get(name))]


def required(cls, *but):
    """Arguments that have to be given."""
    wanted = {int: 3, str: "x"}
    hints = typing.get_type_hints(cls.__init__)
    return {
        p.name: wanted.get(hints.get(p.name), "x")
        for p in inspect.signature(cls).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name not in but
    }


class ParsesOnly(TPAUCCLI):
    def before_instantiate_classes(self):
        pass

    def instantiate_classes(self):
        pass


def parsed(words, place):
    config = ParsesOnly(words, run=False).config.as_dict()
    for name in place.split("."):
        config = config[name] if name in config else config["init_args"][name]
    return config[0] if isinstance(config, list) else config


public = [getattr(lightning_tpauc, name) for name in lightning_tpauc.__all__]
CLASSES: set[type] = {
    cls
    for cls in (*_CLASSES, *(each for each in public if isinstance(each, type)))
    if place_of(cls) and not inspect.isabstract(cls) and may_be_none(cls)
}


@pytest.mark.parametrize("cls", sorted(CLASSES, key=str), ids=lambda cls: str(cls.__name__))
def test_null_is_taken_in_both_places(tmp_path, cls):
    place, names = place_of(cls), may_be_none(cls)
    given = {**required(cls, *names), **dict.fromkeys(names)}
    path = f"{cls.__module__}.{cls.__name__}"
    first = [f"--{place}+={path}"] if place == "trainer.callbacks" else [f"--{place}", path]
    words = [word for kind in REQUIRED.keys() - {place} for word in REQUIRED[kind]] + first
    config = {"class_path": path, "init_args": given}
    if place == "trainer.callbacks":
        config = [config]
    elif "." in place:
        config = {"class_path": "TPAUCModule", "init_args": {place.partition(".")[2]: config}}
    head = place.split(".")
    whole = {head[0]: {head[1]: config}} if head[0] == "trainer" else {head[0]: config}
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(whole))
    others = [word for kind in REQUIRED.keys() - {head[0]} for word in REQUIRED[kind]]
    from_file = parsed([*others, "--config", str(file)], place)
    on_line = parsed([*words, *(w for k, v in given.items() for w in (f"--{place}.{k}", yaml_of(v)))], place)
    assert on_line["init_args"] == from_file["init_args"]
    assert all(on_line["init_args"][name] is None for name in names)


def yaml_of(value):
    return "null" if value is None else str(value)


@pytest.mark.parametrize("words", [["--model.optimizer", "Adam", "--model.optimizer.foreach", "null"]])
def test_null_of_a_class_of_torch(words):
    config = ParsesOnly([*REQUIRED["data"], *REQUIRED["model"], *words], run=False).config.as_dict()
    assert config["model"]["init_args"]["optimizer"]["init_args"]["foreach"] is None
