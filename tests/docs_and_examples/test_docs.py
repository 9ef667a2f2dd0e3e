"""The pages of docs/: their code runs, what they quote is said, everything public is described, and the site builds."""

import ast
import importlib
import importlib.util
import json
import re
import runpy
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from unittest.mock import create_autospec

import pytest

import lightning_tpauc
from tests.helpers.paths import ROOT
from tests.helpers.readme import runnable
from tests.helpers.shown_commands import run_command

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
TEXTS = {page.stem: page.read_text(encoding="utf-8") for page in PAGES}
#: What the Python blocks of a page, or the cells of a notebook, need beside the core.
NEEDS = {
    "assays": ["ogb", "pandas", "rdkit", "torch_geometric"],
    "curves": ["matplotlib"],
    "data": ["pandas", "torch_geometric"],
    "labels": ["pandas"],
    "methods": ["matplotlib"],
    "scikit-learn": ["pandas"],
    "molecules": ["ogb", "rdkit", "torch_geometric"],
    "raw-csv": ["pandas"],
}
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))
COMMANDS = {(name, key): command for name, text in TEXTS.items() for key, command in runnable(text).items()}


# ---------------------------------------------------------------- code


def code_cells(path):
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def python_blocks(text):
    """Source of each block and the modules that it needs by its own comment."""
    for match in re.finditer(r"^(?:<!-- needs: ([\w ]+) -->\n)?```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield match[2], (match[1] or "").split()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, text in TEXTS.items() if "```python\n" in text])
def test_python_blocks_run_one_after_the_other(name, tmp_cwd):
    for module in NEEDS.get(name, []):
        pytest.importorskip(module)
    names = {"__name__": "docs"}
    for number, (source, needed) in enumerate(python_blocks(TEXTS[name])):
        if all(importlib.util.find_spec(module) for module in needed):
            exec(compile(source, f"{name}.md block {number}", "exec"), names)  # noqa: S102


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_is_uploaded_to_the_hub_is_of_use(tmp_cwd, monkeypatch):
    """A folder stands in for the Hub; the calls have the arguments of huggingface_hub."""
    hub = pytest.importorskip("huggingface_hub")
    api = create_autospec(hub.HfApi, instance=True)
    api.upload_folder.side_effect = lambda *, folder_path, repo_id: shutil.copytree(folder_path, repo_id)
    monkeypatch.setattr(hub, "HfApi", lambda: api)
    names = {"__name__": "docs"}
    blocks = re.findall(r"^```\S*python.*?\n(.*?)^```", TEXTS["sharing"], re.MULTILINE | re.DOTALL)[:4]
    exec("".join([*blocks[:3], 'folder = Path("you/eights")\n', blocks[3]]), names)  # noqa: S102
    api.create_repo.assert_called_once_with("you/eights")
    assert names["loaded"].threshold == names["model"].threshold
    assert "license: apache-2.0" in (tmp_cwd / "you/eights/README.md").read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_cell_by_cell(path, tmp_cwd):
    for module in NEEDS.get(path.stem, []):
        pytest.importorskip(module)
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    names = {"__name__": "notebook"}
    for number, cell in enumerate(code_cells(path)):
        exec(compile("".join(cell["source"]), f"{path.name} cell {number}", "exec"), names)  # noqa: S102
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_saved_outputs_of_a_notebook_are_small_and_no_errors(path):
    kinds = {output.get("name", output["output_type"]) for cell in code_cells(path) for output in cell["outputs"]}
    assert {"stdout"} <= kinds <= {"stdout", "display_data", "execute_result"}
    assert path.stat().st_size < 100_000


def test_every_shell_block_is_marked():
    for name, text in TEXTS.items():
        marked = len(runnable(text)) + len(re.findall(r"<!-- not run: [^>]+ -->\n```bash", text))
        assert text.count("```bash") == marked, name


@pytest.mark.slow
@pytest.mark.parametrize(("page", "name"), COMMANDS)
def test_command_runs(page, name, tmp_path):
    run_command(COMMANDS[page, name], tmp_path)


# ---------------------------------------------------------------- words


def said():
    """All text of the package, with `…` where an f-string has a value."""
    for path in (ROOT / "lightning_tpauc").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def says(text, heading):
    """Whether the fixed parts of a heading follow each other in a text."""
    return (
        re.search(".*".join(re.escape(part.strip()) for part in heading.split("…") if part.strip()), text) is not None
    )


SAID = [" ".join(re.sub(r"\{[^{}]*\}", "…", text).replace("`", "").split()) for text in said()]


@pytest.mark.parametrize("heading", re.findall(r"^### `(.*)`$", TEXTS["faq"], re.MULTILINE))
def test_quoted_messages_are_those_of_the_package(heading):
    assert any(says(text, heading) for text in SAID), heading


def public_names():
    for module in ("", ".algorithms", ".comparison", ".data", ".functional", ".metrics", ".models"):
        imported = importlib.import_module(f"lightning_tpauc{module}")
        for name in imported.__all__:
            if not name.startswith("__") and not isinstance(getattr(imported, name), type(sys)):
                yield name
    errors = vars(lightning_tpauc.errors).items()
    yield from (n for n, value in errors if isinstance(value, type) and value.__module__ == "lightning_tpauc.errors")


def test_everything_public_is_in_the_reference():
    text = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    described = set(re.findall(r"^::: lightning_tpauc\.(?:\w+\.)*(\w+)$", text, re.MULTILINE))
    given = {"GatheredScores", "OperatingPoint"}  # by hooks and attributes
    assert set(public_names()) | given == described


def test_pages_do_not_lie_about_files():
    """Files of the repository that the pages name are there."""
    for name, text in TEXTS.items():
        for path in re.findall(r"`((?:examples|configs|benchmarks)/[\w./-]*)`", text):
            assert (ROOT / path).exists(), (name, path)


def test_the_picture_of_the_rectangle_is_drawn_by_its_script(tmp_path, capsys):
    pytest.importorskip("matplotlib").use("agg")
    script = runpy.run_path(str(DOCS / "tools" / "pictures.py"))
    script["rectangle"].__globals__["IMAGES"] = tmp_path
    script["rectangle"]()
    drawn, kept = (folder / "rectangle.png" for folder in (tmp_path, DOCS / "images"))
    width_and_height = slice(16, 24)  # of a PNG file
    assert drawn.read_bytes()[width_and_height] == kept.read_bytes()[width_and_height]


# ---------------------------------------------------------------- the site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for module in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(module)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_the_site_builds_without_a_warning(site):
    assert (site / "index.html").is_file()
    inventory = (site / "objects.inv").read_bytes()
    objects = zlib.decompress(inventory.split(b"zlib.\n", 1)[1]).decode()
    assert "lightning_tpauc.TPAUCModule " in objects


def test_the_site_shows_what_it_should(site):
    """Formulas are formulas, roles of docstrings are gone, nothing is asked of other servers."""
    pages = {path.relative_to(site): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    for path, page in pages.items():
        body = re.sub(r"<(script|code|pre)\b.*?</\1>", "", page, flags=re.DOTALL)
        assert not re.search(r":(class|func|meth|math|mod|attr):", body), path
        assert "arithmatex" not in body, path
        assert not re.search(r'<(script|link|img)[^>]+(src|href)="https?://', page), path
        assert "--8&lt;--" not in page, path
    assert "<math" in pages[Path("how-it-works/index.html")]
    assert "<math" in pages[Path("api/algorithms/index.html")]
