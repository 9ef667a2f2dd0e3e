"""Optional dependencies: their import, and what comes from them."""

import importlib
import sys
import warnings
from typing import Any

from lightning_tpauc.errors import MissingExtraError


def import_extra(module: str, extra: str) -> Any:
    """Import a module of an optional dependency when it is first needed; ``extra`` is ours that installs it.

    Raises:
        MissingExtraError: the module can't be imported; the message names the pip command.
    """
    try:
        with warnings.catch_warnings():
            # torch_geometric scripts helpers while it is imported, and recent releases of torch deprecate
            # torch.jit.script with a FutureWarning that users of this package can do nothing about.
            warnings.simplefilter("ignore", FutureWarning)
            return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"`{module}` can't be imported ({error}). Install it with: pip install 'lightning-tpauc[{extra}]'"
        ) from error


def is_graph(item: Any) -> bool:
    """Whether this is a graph of PyG. PyG is not imported: if nobody has imported it, there are no graphs."""
    module = sys.modules.get("torch_geometric.data.data")
    return module is not None and isinstance(item, module.BaseData)
