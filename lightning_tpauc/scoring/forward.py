"""Forward passes: how batches reach the model, and how its output becomes one score per example."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from tqdm import tqdm

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.data.labels import NAMES
from lightning_tpauc.errors import ArgumentError, TPAUCError, warn_on_rank_zero
from lightning_tpauc.extras import is_graph
from lightning_tpauc.functional.checks import eager
from lightning_tpauc.metrics.reporting import Report

#: Seconds after which a pass shows how far it is.
DELAY = 2.0


class ScoringModel(LightningModule):
    """What the layers below :class:`~lightning_tpauc.TPAUCModule` know of it.

    Attributes:
        algorithm: the training method, a copy of what was given.
        algorithm_is_default: whether the user left it to us, so that a checkpoint sets the rectangle to evaluate.
        base_lr: which parameter group leads the algorithm's step sizes, and its learning rate before any schedule.
        input_layout: what the inputs in training consist of; ``None`` before data or a checkpoint tell.
        label_settings: what came as ``tasks``, checked.
        trained_labels: the labels of a model with several outputs; ``None`` for one label, and before data tell.
        knows_labels: whether data or a checkpoint have told which labels there are.
        operating_point: what the model decides by; see :class:`~lightning_tpauc.DecisionThreshold`.
        training_state: what the training remembers; see :class:`~lightning_tpauc.training.state.TrainingState`.
        _reported: what validation and test report.
        _collected: the scores of each data loader of a validation or test that runs.
    """

    algorithm: Algorithm
    algorithm_is_default: bool
    score_activation: Literal["identity", "sigmoid"]
    gradient_clip_val: float | None
    num_positives: int | list[int] | None
    init_from: str | None
    warmup: float
    base_lr: tuple[int, float | None]
    input_layout: Any
    label_settings: Any
    trained_labels: Any
    knows_labels: bool
    operating_point: Any = None
    training_state: Any
    raw_scores: Callable[[Any], Tensor]
    algorithm_scores: Callable[[Any], Tensor]
    joint_scores: Callable[[Any], Any]
    _objective_activation: Literal["identity", "sigmoid"] | None
    _reported: Report
    _collected: Sequence[Any] = ()

    @property
    def _num_labels(self) -> int | None:
        """K of a model with K outputs; ``None`` for one label."""
        return None if self.trained_labels is None else len(self.trained_labels.names)

    @property
    def _score_dtype(self) -> torch.dtype:
        """float32, or float64 where the model computes in double precision."""
        double = any(parameter.dtype == torch.float64 for parameter in self.parameters())
        return torch.float64 if double else torch.float32


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """The module is in evaluation mode inside, without gradients; every part is in its own mode again afterwards."""
    modes = [(child, child.training) for child in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for child, training in modes:
            child.training = training


def in_known_order(inputs: Any, known: Any) -> Any:
    """Inputs that are a mapping, with the keys in the order that the model knows: it may go through their values."""
    if not isinstance(inputs, dict) or not isinstance(known, Mapping) or inputs.keys() != set(known.get("keys", ())):
        return inputs
    return {key: inputs[key] for key in known["keys"]}


def call_model(model: Callable[..., Any], inputs: Any) -> Any:
    """Call ``model`` on the inputs of a batch, by position or by keyword, depending on its ``forward``.

    A mapping is passed by keyword if its keys are names of parameters. The tensors of a PyG graph are passed by keyword
    if ``forward`` names them, such as ``(x, edge_index, batch)``. Labels are left out unless ``forward`` requires a
    parameter of that name. A tuple or list becomes several arguments if ``forward`` requires several. Anything else is
    the only argument.

    Raises:
        ArgumentError: if ``forward`` requires an entry that the inputs lack.

    Example:
        >>> call_model(lambda tokens, mask: tokens * mask, {"tokens": 2, "mask": 3})
        6
    """
    if isinstance(inputs, Tensor):  # the usual case, in every step
        return model(inputs)
    positional, named = _arguments(model, inputs)
    if named or len(positional) != 1 or not isinstance(inputs, (Mapping, tuple, list)):
        return model(*positional, **named)
    try:
        return model(inputs)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(inputs, Mapping):
            function = model.forward if isinstance(model, nn.Module) else model
            entries = [key for key in inspect.signature(function).parameters if key in inputs] or list(inputs)
            if len(entries) == 1:  # the model takes this entry, and not the mapping
                return model(inputs[entries[0]])
        names = f"the {len(inputs)} entries of an item"
        names += f" ({', '.join(map(str, inputs))})" if isinstance(inputs, Mapping) else " (without its label)"
        msg = (
            f"The model can't compute with these inputs: {error!r}. It got {names} as one {type(inputs).__name__}. Let "
            "`forward` take one argument for each; leave out of the data set's items what is no input, such as a "
            "number of the row, and name it with `ids` where items are dictionaries."
        )
        raise ArgumentError(msg) from error


@eager
def _arguments(model: Callable[..., Any], inputs: Any) -> tuple[list[Any], dict[str, Any]]:
    function = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    function = function.forward if isinstance(function, nn.Module) else function
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # functions that are not written in Python may have no signature
        return [inputs], {}
    if isinstance(inputs, Mapping):
        return _of_mapping(signature, inputs)
    if is_graph(inputs):
        return _of_graph(signature, inputs)
    several = isinstance(inputs, (tuple, list)) and not _binds(signature, inputs) and _binds(signature, *inputs)
    return (list(inputs) if several else [inputs]), {}


def _of_mapping(signature: inspect.Signature, inputs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    parameters = _named(signature)
    known = [p for p in parameters if p.name in inputs]
    alone = len(parameters) == 1 and len(inputs.keys() - set(NAMES)) > 1  # which may be the mapping's name
    if _binds(signature, inputs) and (not known or (alone and not _takes_any(signature))):
        return [inputs], {}
    given = {p.name: inputs[p.name] for p in known if p.name not in NAMES or _required(p)}
    others = {name: value for name, value in inputs.items() if name not in given and name not in NAMES}
    _check_complete(parameters, given, inputs)
    if _takes_any(signature):
        return [], {**given, **others}
    if others:
        warn_on_rank_zero(
            f"`forward` of the model takes no {' and no '.join(f'`{name}`' for name in others)}, which the batches "
            "hold: left out. Leave them out of the data set's items, or write a `forward(batch)`."
        )
    return [], given


def _of_graph(signature: inspect.Signature, inputs: Any) -> tuple[list[Any], dict[str, Any]]:
    parameters = _named(signature)
    stored = set(inputs.keys()) - set(NAMES)
    # a heterogeneous graph keeps x_dict and edge_index_dict under other names
    given = [
        p.name for p in parameters if p.name in stored or (_required(p) and getattr(inputs, p.name, None) is not None)
    ]
    if len(given) < 2:
        return [inputs], {}
    _check_complete(parameters, given, sorted(stored))
    return [], {name: getattr(inputs, name) for name in given}


def _check_complete(parameters: list[Parameter], given: Iterable[str], offered: Iterable[str]) -> None:
    missing = [p.name for p in parameters if _required(p) and p.name not in given]
    if missing:
        msg = (
            f"`forward` of the model requires {' and '.join(f'`{name}`' for name in missing)}, but the batches hold "
            f"{', '.join(offered)}. Let the data set's items hold them, or write a `forward(batch)`."
        )
        raise ArgumentError(msg)


def _takes_any(signature: inspect.Signature) -> bool:
    return any(p.kind is Parameter.VAR_KEYWORD for p in signature.parameters.values())


def _named(signature: inspect.Signature) -> list[Parameter]:
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return [p for p in signature.parameters.values() if p.kind in kinds]


def _required(parameter: Parameter) -> bool:
    return parameter.default is Parameter.empty


def _binds(signature: inspect.Signature, *positional: Any, **named: Any) -> bool:
    try:
        signature.bind(*positional, **named)
    except TypeError:
        return False
    return True


def scores_of(output: Any) -> Tensor:
    """The scores in a model's output: the output itself, or its ``logits``, as models of Hugging Face call them."""
    if isinstance(output, Mapping):
        output = output.get("logits", output)
    scores = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(scores, Tensor):
        msg = (
            f"Expected `forward` to return one score per example, a tensor of shape (N,) or (N, 1), but got "
            f"{_described(output)}. Wrap the model in one whose `forward` returns the scores alone."
        )
        raise ArgumentError(msg)
    if not scores.is_floating_point():
        msg = (
            f"Expected `forward` to return one score per example, but got {scores.dtype}, which has no gradient: "
            "return what the classes are decided from, before any `argmax` or threshold."
        )
        raise ArgumentError(msg)
    return scores


def one_score(scores: Tensor) -> Tensor:
    """One score per example, ``(N,)``, from ``(N,)``, ``(N, 1, ...)``, or two logits: the second less the first.

    Example:
        >>> import torch
        >>> one_score(torch.tensor([[1.0, 3.0], [2.0, 0.5]]))
        tensor([ 2.0000, -1.5000])
    """
    if scores.ndim == 2 and scores.shape[1] == 2:
        return scores[:, 1] - scores[:, 0]
    if scores.ndim < 2 or all(size == 1 for size in scores.shape[1:]):
        return scores.reshape(-1)
    msg = (
        "Expected `forward` to return one score per example, shape (N,) or (N, 1), or the logits of two classes, "
        f"(N, 2), but got {tuple(scores.shape)}. Return the score of the class that counts as positive, or train on "
        "data with a column of labels for each output."
    )
    raise ArgumentError(msg)


def scores_of_labels(scores: Tensor, names: Sequence[str]) -> Tensor:
    """Scores ``(N, K)`` of K labels, also from ``(N, K, 1, ...)``, or from ``(N,)`` of one."""
    rows = scores.shape[0] if scores.ndim else 0
    if scores.numel() == rows * len(names) and scores.shape[1:2] in ((len(names),), *([()] if len(names) == 1 else [])):
        return scores.reshape(rows, len(names))
    outputs = "one output" if scores.ndim < 2 or scores.shape[1] == 1 else f"{scores.shape[1]} outputs"
    shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
    msg = (
        f"The model has {outputs}, shape {tuple(scores.shape)}, but there are {len(names)} labels: {shown}. Give it an "
        f"output for each, as `num_labels={len(names)}` does for the models of this package."
    )
    raise ArgumentError(msg)


def _described(output: Any) -> str:
    kind = type(output).__name__
    if isinstance(output, Mapping):
        return f"a {kind} of {', '.join(map(repr, output))}"
    if isinstance(output, (tuple, list)):
        return f"a {kind} of {', '.join(type(part).__name__ for part in output)}"
    return f"a {kind}"


def device_batches(
    module: LightningModule, loader: Iterable[Any], title: str, total: int | None = None
) -> Iterator[Any]:
    """Yield batches as steps get them: in the precision's dtype, through the transfer hooks, on the device.

    The caller works on each batch in the precision plugin's context, which includes mixed precision. A bar shows on a
    terminal how far it is, unless the Trainer shows none.
    """
    trainer = module.trainer
    hidden = not trainer.is_global_zero or trainer.progress_bar_callback is None
    # a bar that is disabled by None shows on terminals alone
    how: dict[str, Any] = {"delay": DELAY, "leave": False, "disable": hidden or None}
    for host_batch in tqdm(loader, desc=title, total=total, **how):
        batch = trainer.precision_plugin.convert_input(host_batch)
        batch = module._on_before_batch_transfer(batch)
        batch = trainer.strategy.batch_to_device(batch)
        with trainer.precision_plugin.forward_context():
            yield batch


#: What torch says of inputs that a layer has not been made for.
_SHAPES = (
    r"shapes cannot be multiplied|size mismatch|must match the size|expected input|should contain \d+ elements|"
    r"input to (batch|conv)|[Ee]xpected \d?-?D|input\.size|invalid for input|index out of range in self"
)


@contextmanager
def explained_inputs(inputs: Any, model: nn.Module) -> Iterator[None]:
    """An :class:`ArgumentError` where the inputs' dtype or shape is not what the model's weights are for."""
    try:
        yield
    except (RuntimeError, IndexError, ValueError) as error:
        if isinstance(error, TPAUCError):
            raise
        msg = _about_dtypes(error, inputs, model) or _about_shapes(error, inputs, model)
        if msg is None:
            raise
        raise ArgumentError(msg) from error


def _about_dtypes(error: Exception, inputs: Any, model: nn.Module) -> str | None:
    dtypes = {tensor.dtype for tensor in _tensors(inputs)}
    weights = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    if dtypes <= {weights} or not re.search(r"dtype|[a-z] type|implemented for '", str(error)):
        return None
    found = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
    wider = ", or train with `Trainer(precision='64-true')`" if dtypes == {torch.float64} else ""
    return (
        f"The model can't compute with these inputs: {error}. They are {found} and its weights "
        f"{str(weights).removeprefix('torch.')}. Convert them, for instance with `x.float()`{wider}."
    )


def _about_shapes(error: Exception, inputs: Any, model: nn.Module) -> str | None:
    """Explain an error about shapes with those of a batch and of the first weight, which most often do not fit."""
    tensors = list(_tensors(inputs))
    if not tensors or not re.search(_SHAPES, str(error)):
        return None
    shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors[:3])
    weights = ((n, p) for n, p in model.named_parameters() if not isinstance(p, UninitializedParameter))
    weight = next((f", and the model's first weight, `{n}`, has {tuple(p.shape)}" for n, p in weights), "")
    whole = [t for t in tensors if not t.is_floating_point() and t.numel()] if isinstance(error, IndexError) else []
    values = f" Its numbers lie in {int(whole[0].min())} .. {int(whole[0].max())}." if whole else ""
    return (
        f"The model can't compute with these inputs: {error}. A batch of them has shape {shapes}{weight}.{values} If "
        "these two fit, a later layer does not take what the one before it gives."
    )


def _tensors(inputs: Any) -> Iterator[Tensor]:
    """All tensors in nested lists, tuples and mappings."""
    if isinstance(inputs, Tensor):
        yield inputs
    elif isinstance(inputs, (Mapping, list, tuple)):
        for part in inputs.values() if isinstance(inputs, Mapping) else inputs:
            yield from _tensors(part)
