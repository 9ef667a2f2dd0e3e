"""Reports of jsonargparse, as it prints them, said in one line."""

import pytest

from lightning_tpauc.cli.errors import explain, options_of

OPTIONS = ["model", "data", "trainer.max_epochs", "trainer.accelerator", "ckpt_path"]
CLASSES = ["STACO", "SOTA", "TPAUCModule", "DigitsDataModule"]

NESTED = """Parser key "model":
  Does not validate against any of the Union subtypes
  Subtypes: [<class 'lightning_tpauc.module.TPAUCModule'>, <class 'NoneType'>]
  Errors:
    - Problem with given class_path 'lightning_tpauc.TPAUCModule':
        Parser key "algorithm":
          Does not validate against any of the Union subtypes
          Subtypes: [<class 'lightning_tpauc.algorithms.base.Algorithm'>, <class 'NoneType'>]
          Errors:
            - Problem with given class_path 'lightning_tpauc.algorithms.STACO':
                Option 'max_fprr' is not accepted
            - Expected a <class 'NoneType'>
          Given value type: <class 'dict'>
          Given value: {'class_path': 'lightning_tpauc.algorithms.STACO', 'init_args': {'max_fprr': 0.5}}
    - Expected a <class 'NoneType'>
  Given value type: <class 'dict'>
  Given value: {'class_path': 'lightning_tpauc.TPAUCModule', 'init_args': {}}"""

FACTORY = """Parser key "model":
  Errors:
    - Problem with given class_path 'lightning_tpauc.TPAUCModule':
        Parser key "optimizer":
          Errors:
            - Type typing.Callable[[collections.abc.Iterable], torch.optim.optimizer.Optimizer] expects a function or \
a callable class: Option 'lrr' is not accepted. Got value: Namespace(class_path='torch.optim.SGD', init_args=0)
            - Expected a <class 'NoneType'>
          Given value: {'class_path': 'torch.optim.SGD', 'init_args': {'lrr': 0.1}}"""

IN_A_LIST = """Parser key "trainer.callbacks":
  Does not validate against any of the Union subtypes
  Errors:
    - Problem with given class_path 'lightning.pytorch.callbacks.ModelCheckpoint':
        Option 'monitr' is not accepted
    - Not a valid subclass of Callback
      Subclass types expect one of:
      - a class path (str)
      - a dict with class_path entry
    - Expected a <class 'NoneType'>
  Given value: [{'class_path': 'lightning.pytorch.callbacks.ModelCheckpoint', 'init_args': {'monitr': 'val/tpauc'}}]"""

NO_CLASS = """Parser key "model":

  - Expected a path but STACOO either not accessible or invalid
  - Does not validate against any of the Union subtypes
  Errors:
    - Expected a dot import path string: STACOO
    - Expected a <class 'NoneType'>
  Given value type: <class 'str'>
  Given value: STACOO"""

VALUE = """Parser key "trainer.max_epochs":
  Does not validate against any of the Union subtypes
  Subtypes: [<class 'int'>, <class 'NoneType'>]
  Errors:
    - Expected a <class 'int'>
    - Expected a <class 'NoneType'>
  Given value type: <class 'str'>
  Given value: many"""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param(
            NESTED, "model.algorithm: STACO has no option 'max_fprr'; did you mean 'max_fpr'?", id="nested class"
        ),
        pytest.param(FACTORY, "model.optimizer: SGD has no option 'lrr'; did you mean 'lr'?", id="optimizer"),
        pytest.param(
            IN_A_LIST,
            "trainer.callbacks: ModelCheckpoint has no option 'monitr'; did you mean 'monitor'?",
            id="callback in a list",
        ),
        pytest.param(
            "Subcommand 'fit' does not accept option 'trainer.max_epoch'",
            "there is no option 'trainer.max_epoch'; did you mean 'trainer.max_epochs'?",
            id="trainer",
        ),
        pytest.param(
            "Subcommand 'fit' does not accept option 'trainr.accelerator'",
            "there is no option 'trainr.accelerator'; did you mean 'trainer.accelerator'?",
            id="group",
        ),
        pytest.param(
            "unrecognized arguments: --trainer.max_epocs 3 --dat=x",
            "there is no option '--trainer.max_epocs'; did you mean '--trainer.max_epochs'?\n"
            "there is no option '--dat'; did you mean '--data'?",
            id="command line",
        ),
        pytest.param(NO_CLASS, "model: there is no class 'STACOO'; did you mean 'STACO'?", id="class"),
        pytest.param(
            NO_CLASS.replace("STACOO", "Adm"),
            "model: there is no class 'Adm'; give its full path, such as 'torch.optim.Adam'",
            id="class of another package",
        ),
        pytest.param(
            "module 'torch.optim' has no attribute 'Adagard'",
            "there is no class 'Adagard' in torch.optim; did you mean 'Adagrad'?",
            id="class path",
        ),
        pytest.param(
            "Parser key \"data\":\n  Given value: {'class_path': 'DigitsDataModule', 'initargs': {}}",
            "data: beside class_path there is no option 'initargs'; did you mean 'init_args'?",
            id="beside class_path",
        ),
    ],
)
def test_one_line_names_option_owner_and_the_closest(message, expected):
    assert explain(message, OPTIONS, CLASSES) == expected


@pytest.mark.parametrize(
    ("key", "taken_for", "option", "remedy"),
    [
        ("optimizer", "torch.optim.Optimizer", "lr", "--model.optimizer DampedAdam"),
        ("lr_scheduler", "typing.Union", "T_max", "--model.lr_scheduler CosineAnnealingLR"),
    ],
)
def test_an_option_without_the_class_that_has_it(key, taken_for, option, remedy):
    message = FACTORY.replace("torch.optim.SGD', init_args=0", f"{taken_for}', init_args=0")
    message = message.replace('"optimizer"', f'"{key}"').replace("'lrr'", f"'{option}'", 1)
    expected = f"model.{key}: '{option}' is an option of a class: name that first, such as {remedy}"
    assert explain(message, OPTIONS).splitlines()[0] == expected


def test_without_a_close_one_the_class_lists_its_options():
    line = explain(NESTED.replace("max_fprr", "zzz"), OPTIONS)
    assert line.startswith("model.algorithm: STACO has no option 'zzz'; its options are min_tpr, max_fpr, surrogate")


def test_what_is_not_misspelt_keeps_its_reason():
    assert explain(VALUE, OPTIONS) == (
        "trainer.max_epochs: Expected a <class 'int'>\ntrainer.max_epochs: Given value: many"
    )
    nested = NESTED.replace("Option 'max_fprr' is not accepted", "Expected a <class 'float'>. Got value: big")
    assert explain(nested, OPTIONS) == "model.algorithm: Expected a <class 'float'>. Got value: big"


@pytest.mark.parametrize(
    "message",
    [
        "the following arguments are required: fit.data, fit.model",
        "Option 'model' is not accepted before subcommand 'fit'",
        "Problems parsing config: mapping values are not allowed in this context",
    ],
)
def test_what_is_not_understood_is_passed_on(message):
    assert explain(message, OPTIONS, CLASSES) == message


def test_the_real_reason_is_not_lost_among_unread_lines():
    text = 'Parser key "data":\n  Something new\n    - and more of it\n'
    assert explain(text, OPTIONS) == "data: Something new\ndata: and more of it"


def test_options_of_a_class():
    assert options_of("lightning_tpauc.algorithms.CrossEntropy") == ["min_tpr", "max_fpr", "balanced", "pos_weight"]
    assert {"num_pos", "val_fraction", "positive_digit"} <= set(options_of("lightning_tpauc.DigitsDataModule"))
    assert options_of("lightning_tpauc.Nothing") == []
    assert options_of("no_such_package.Nothing") == []
    assert options_of("Nothing") == []
