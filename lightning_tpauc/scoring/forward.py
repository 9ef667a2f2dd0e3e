"""Forward passes: how batches reach the model, and how its output becomes one score per example."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from tqdm import tqdm

from lightning_tpauc.algorithms import Algorithm
from lightning_tpauc.data.labels import NAMES
from lightning_tpauc.errors import ArgumentError, warn_on_rank_zero
from lightning_tpauc.extras import is_graph
from lightning_tpauc.functional.checks import eager
from lightning_tpauc.metrics.reporting import Report

#: Seconds after which a pass shows how far it is.
DELAY = 2.0


class ScoringModel(LightningModule):
    """What the layers below :class:`~lightning_tpauc.TPAUCModule` know of it."""

    algorithm: Algorithm
    #: Whether the user left the algorithm to us, so that a checkpoint sets the rectangle to evaluate.
    algorithm_is_default: bool
    score_activation: Literal["identity", "sigmoid"]
    gradient_clip_val: float | None
    chunk_size: int | None
    num_positives: int | list[int] | None
    init_from: str | None
    warmup: float | None
    #: Which parameter group leads the algorithm's step sizes, and its learning rate before any schedule.
    base_lr: tuple[int, float | None] = (0, None)
    #: What the inputs in training consist of; ``None`` before data or a checkpoint tell.
    input_layout: Any = None
    #: What came as ``tasks``, checked.
    label_settings: Any
    #: The labels of a model with several outputs; ``None`` for one label, and before data tell.
    trained_labels: Any = None
    #: Whether data or a checkpoint have told which labels there are.
    knows_labels: bool = False
    operating_point: Any = None
    training_state: Any
    raw_scores: Callable[[Any], Tensor]
    algorithm_scores: Callable[[Any], Tensor]
    joint_scores: Callable[[Any], Any]
    #: Whether the scores of training come out of a sigmoid or softmax, as far as their graph tells; ``None``: not seen.
    _is_squashed: bool | None = None
    #: What validation and test report.
    _reported: Report
    #: The scores of each data loader of a validation or test that runs.
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


def wants_raw_scores(algorithm: Algorithm, activation: str) -> bool:
    """Whether scores that went through a sigmoid already would train worse."""
    return algorithm.takes_logits or activation == "sigmoid" or getattr(algorithm, "margin", 0.0) is None


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
        try:
            return model(inputs)
        except RuntimeError as error:
            first = next((p for p in getattr(model, "modules", list)() if isinstance(p, nn.Linear)), None)
            if first is None or f"x{inputs.shape[-1]} and {first.in_features}x" not in str(error):
                raise
            text = f"The model takes {first.in_features} inputs (`num_features`), but the data have {inputs.shape[-1]}"
            raise ArgumentError(f"{text}. Build it for these, or name columns that are none, as `ids`.") from error
    positional, named = _arguments(model, inputs)
    if named or not isinstance(inputs, Mapping):
        return model(*positional, **named)
    try:
        return model(inputs)
    except (AttributeError, LookupError, TypeError, ValueError):
        signature = _signature(model)
        entries = [name for name in (signature.parameters if signature else ()) if name in inputs] or list(inputs)
        if len(entries) != 1:
            raise
        return model(inputs[entries[0]])  # the model takes this entry, and not the mapping


def _signature(model: Callable[..., Any]) -> inspect.Signature | None:
    function = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    try:
        return inspect.signature(function.forward if isinstance(function, nn.Module) else function)
    except (TypeError, ValueError):  # functions that are not written in Python may have none
        return None


@eager
def _arguments(model: Callable[..., Any], inputs: Any) -> tuple[list[Any], dict[str, Any]]:
    """What to pass by position, and by keyword."""
    signature, is_mapping = _signature(model), isinstance(inputs, Mapping)
    if signature is not None and isinstance(inputs, (tuple, list)):
        several = not _binds(signature, inputs) and _binds(signature, *inputs)
        return (list(inputs) if several else [inputs]), {}
    if signature is None or not (is_mapping or is_graph(inputs)):
        return [inputs], {}
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    required = {p.name: p.default is Parameter.empty for p in signature.parameters.values() if p.kind in kinds}
    takes_any = any(p.kind is Parameter.VAR_KEYWORD for p in signature.parameters.values())
    if is_mapping:
        offered = inputs
        given = {n: inputs[n] for n in required if n in inputs and (required[n] or n not in NAMES)}
        others = {name: value for name, value in inputs.items() if name not in given and name not in NAMES}
        # the only parameter's name may be the mapping's own
        alone = len(required) == 1 and len(given) + len(others) > 1 and not takes_any
        as_one = _binds(signature, inputs) and (not given or alone)
    else:
        offered, others = sorted({*inputs.keys()} - {*NAMES}), {}
        # a heterogeneous graph keeps x_dict and edge_index_dict under other names
        named = {n: getattr(inputs, n, None) for n in required if n in offered or required[n]}
        given = {name: value for name, value in named.items() if value is not None}
        as_one = len(given) < 2
    if as_one:
        return [inputs], {}
    missing = [name for name in required if required[name] and name not in given]
    if missing:
        needed, held = " and ".join(f"`{name}`" for name in missing), ", ".join(offered)
        remedy = "Let the data set's items hold them, or write a `forward(batch)`."
        raise ArgumentError(f"`forward` of the model requires {needed}, but the batches hold {held}. {remedy}")
    if others and not takes_any:
        warn_on_rank_zero(
            f"`forward` of the model takes no {' and no '.join(f'`{name}`' for name in others)}, which the batches "
            "hold: left out. Leave them out of the data set's items, or write a `forward(batch)`."
        )
    return [], {**given, **(others if takes_any else {})}


def _binds(signature: inspect.Signature, *positional: Any) -> bool:
    try:
        signature.bind(*positional)
    except TypeError:
        return False
    return True


def scores_of(output: Any) -> Tensor:
    """The scores in a model's output: the output itself, or its ``logits``, as models of Hugging Face call them."""
    named = output.get("logits", output) if isinstance(output, Mapping) else output
    scores = named if isinstance(named, Tensor) else getattr(named, "logits", None)
    if isinstance(scores, Tensor) and scores.is_floating_point():
        return scores
    got = f"a {type(output).__name__}" if scores is None else f"{scores.dtype}, which has no gradient"
    expected = "Expected `forward` to return one score per example, a float tensor (N,) or (N, 1)"
    raise ArgumentError(f"{expected}, but got {got}. Return the scores alone, from before any `argmax` or threshold.")


def shaped_scores(scores: Tensor, names: Sequence[str] | None = None) -> Tensor:
    """Scores ``(N,)``, or ``(N, K)`` of K labels, without further axes of length 1.

    Of one label the logits of two classes become one score, the second less the first.

    Example:
        >>> import torch
        >>> shaped_scores(torch.tensor([[1.0, 3.0], [2.0, 0.5]]))
        tensor([ 2.0000, -1.5000])
    """
    wide = math.prod(scores.shape[1:]) != 1
    if names is None:
        if not wide:
            return scores.reshape(-1)
        if scores.ndim == 2 and scores.shape[1] == 2:
            return scores[:, 1] - scores[:, 0]
        raise ArgumentError(
            "Expected `forward` to return one score per example, shape (N,) or (N, 1), or the logits of two classes, "
            f"(N, 2), but got {tuple(scores.shape)}. Several labels need data with a column for each."
        )
    columns = scores.shape[1] if wide else 1
    if columns == len(names) == math.prod(scores.shape[1:]):
        return scores.reshape(-1, columns)
    outputs = "one output" if columns == 1 else f"{columns} outputs"
    raise ArgumentError(
        f"The model has {outputs}, shape {tuple(scores.shape)}, but there are {len(names)} labels: "
        f"{', '.join(names[:6])}. Give it an output for each, as `num_labels={len(names)}` does for our models."
    )


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
