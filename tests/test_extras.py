import sys
import types
import warnings

from lightning_tpauc.extras import import_extra


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
