"""``null`` is taken wherever an argument may be ``None``, on the command line as in a file."""

import pytest
import yaml

from lightning_tpauc.cli.command import TPAUCCLI

#: Where a class is given, the class, and an argument of it that may be None.
CASES = (
    ("model", "TPAUCModule", "gradient_clip_val"),
    ("model", "TPAUCModule", "init_from"),
    ("model.algorithm", "STACO", "margin"),
    ("model.optimizer", "Adam", "foreach"),
    ("data", "PosNegDataModule", "val_fraction"),
    ("data", "LIBSVMDataModule", "positive_label"),
    ("trainer.callbacks", "StageCallback", "every_n_steps"),
)
REQUIRED = {"LIBSVMDataModule": {"root": "x", "train_file": "x"}}


class ParsesOnly(TPAUCCLI):
    def before_instantiate_classes(self):
        pass

    def instantiate_classes(self):
        pass


def parsed(words, place):
    config = ParsesOnly(words, run=False).config.as_dict()
    for name in place.split("."):
        config = config[name] if name in config else config["init_args"][name]
    return (config[0] if isinstance(config, list) else config)["init_args"]


@pytest.mark.parametrize(("place", "name", "argument"), CASES)
def test_null_is_taken_in_both_places(tmp_path, place, name, argument):
    given = {**REQUIRED.get(name, {}), argument: None}
    config = {"class_path": name, "init_args": given}
    head, _, tail = place.partition(".")
    if head == "model" and tail:
        config = {"class_path": "TPAUCModule", "init_args": {tail: config}}
    whole = {"trainer": {"callbacks": [config]}} if head == "trainer" else {head: config}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(whole))
    others = [f"--{key}={default}" for key, default in (("data", "PosNegDataModule"), ("model", "TPAUCModule"))]
    from_file = parsed(
        [word for word in others if word[2:6] != head[:4]] + ["--config", f"{tmp_path}/config.yaml"], place
    )
    words = [f"--{place}{'+' if head == 'trainer' else ''}={name}"]
    words += [f"--{place}.{key}={'null' if value is None else value}" for key, value in given.items()]
    on_line = parsed([word for word in others if word[2:] != f"{place}=TPAUCModule"] + words, place)
    assert on_line == from_file
    assert on_line[argument] is None
