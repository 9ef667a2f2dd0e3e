import sys
import types
import warnings

import pytest

from lightning_tpauc.errors import MissingExtraError
from lightning_tpauc.extras import import_extra


def test_returns_the_innermost_module():
    import os.path

    assert import_extra("os.path", "graph") is os.path


def test_names_module_and_pip_command():
    with pytest.raises(
        MissingExtraError, match=r"`no_such_module` can't be imported .*pip install 'lightning-tpauc\[plot\]'"
    ):
        import_extra("no_such_module", "plot")


def test_can_be_caught_as_import_error():
    with pytest.raises(ImportError):
        import_extra("no_such_module", "plot")


def test_hides_deprecations_of_the_library_only_while_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / "deprecated_library.py").write_text("import warnings\nwarnings.warn('old', FutureWarning)\nvalue = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module = import_extra("deprecated_library", "graph")
        warnings.warn("mine", FutureWarning, stacklevel=1)
    assert module.value == 3
    assert isinstance(sys.modules["deprecated_library"], types.ModuleType)
    assert [str(w.message) for w in caught] == ["mine"]
