"""Which module may import which, and what public names owe to their readers."""

import ast
import importlib
import inspect
from functools import cache
from typing import get_origin

from tests.helpers.paths import ROOT

PACKAGE = "lightning_tpauc"

#: From the bottom up: a module imports from layers below its own and from its own folder. ``""`` is ``__init__``.
#: What only type checkers read counts as well.
LAYERS = (
    {"errors", "files", "version"},
    {"extras", "functional"},
    {"algorithms", "distributed", "models"},
    {"data"},
    {"metrics"},
    {"lightning_fixes"},
    {"scoring"},
    {"training"},
    {"loss", "module"},
    {"card", "estimator"},
    {"comparison"},
    {"cli"},
    {"", "__main__"},
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}

#: Folders that know less than their layer allows.
ONLY = {
    "functional": {"errors"},
    "distributed": {"errors", "functional"},
    "algorithms": {"errors", "functional"},
    "data": {"distributed", "errors", "extras", "files", "functional"},
    "models": {"errors", "extras", "functional"},
}

LIGHTNING = {"lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning"}
WITHOUT_LIGHTNING = {"algorithms", "errors", "extras", "functional", "models"}
MODULES = sorted((ROOT / PACKAGE).rglob("*.py"))
FOLDERS = {"", "algorithms", "comparison", "data", "functional", "metrics", "models"}


@cache
def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def dotted(path):
    """``lightning_tpauc/data/batch.py`` -> ``data.batch``, ``lightning_tpauc/__init__.py`` -> ``""``."""
    return ".".join(path.relative_to(ROOT / PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def is_module(name):
    file = (ROOT / PACKAGE).joinpath(*name.split("."))
    return file.with_suffix(".py").is_file() or (file / "__init__.py").is_file()


def imports(node):
    """Every absolute name that the import statements below ``node`` bring in."""
    for child in ast.walk(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: relative import"
            yield from (f"{child.module}.{alias.name}" for alias in child.names)


def own_imports(node):
    """Modules of the package that are imported below ``node``, without the package's name; ``""`` for its root."""
    for name in imports(node):
        if name.split(".")[0] == PACKAGE:
            inner = name.removeprefix(PACKAGE).removeprefix(".")
            yield inner if inner and is_module(inner) else inner.rpartition(".")[0]


def violations(find):
    """What ``find(own name, tree)`` reports, by module; empty reports are left out."""
    found = {dotted(path) or "__init__": list(find(dotted(path), parse(path))) for path in MODULES}
    return {name: report for name, report in found.items() if report}


def wrong_edges(own, node):
    """Imports that go upwards, sideways or out of what ``ONLY`` grants."""
    top = own.split(".")[0]
    for name in own_imports(node):
        other = name.split(".")[0]
        assert {top, other} <= set(RANK), f"Give `{top}` and `{other}` their places in LAYERS."
        if other != top and (RANK[other] >= RANK[top] or other not in ONLY.get(top, RANK)):
            yield name


def test_imports_go_one_way():
    assert violations(wrong_edges) == {}


def test_the_mathematics_does_not_know_lightning():
    def find(own, tree):
        return (
            {name.split(".")[0] for name in imports(tree)} & LIGHTNING if own.split(".")[0] in WITHOUT_LIGHTNING else ()
        )

    assert violations(find) == {}


def public_names():
    for folder in sorted(FOLDERS):
        module = importlib.import_module(f"{PACKAGE}.{folder}".rstrip("."))
        for name in getattr(module, "__all__", ()):
            yield f"{folder}.{name}".lstrip("."), getattr(module, name)


def has_example(value):
    """Whether the docstring of a function, or of a class or one of its methods, has an example."""
    if inspect.isclass(value):
        documented = [value, *(member for member in vars(value).values() if callable(member))]
        return any(">>>" in (inspect.getdoc(member) or "") for member in documented)
    return ">>>" in (inspect.getdoc(value) or "")


def needs_docstring(value):
    return inspect.isfunction(value) or (inspect.isclass(value) and get_origin(value) is None)


def needs_example(value):
    """Functions and concrete classes; results, errors and base classes are shown by what uses them."""
    if not needs_docstring(value):  # an alias such as Callable[...] is a class to Python 3.10
        return False
    if inspect.isclass(value):
        plain = issubclass(value, (BaseException, tuple)) or hasattr(value, "__dataclass_fields__")
        return not plain and not inspect.isabstract(value)
    return True


def test_public_names_have_a_docstring_and_an_example():
    names = dict(public_names())
    assert [name for name, value in names.items() if needs_docstring(value) and not (value.__doc__ or "").strip()] == []
    assert [name for name, value in names.items() if needs_example(value) and not has_example(value)] == []
