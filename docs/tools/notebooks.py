"""Notebooks of docs/tutorials as pages of the site, with the outputs that are saved in them."""

import json
from typing import Any

from mkdocs.structure.files import File, Files

_IMAGE = '<img alt="output of the cell above" src="data:image/png;base64,{}">'


def on_files(files: Files, config: Any) -> None:
    """Called by MkDocs when it has found the files: a page is added for each notebook, which stays for download."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        page = file.src_uri.replace(".ipynb", ".md")
        name = file.src_uri.rsplit("/", 1)[-1]
        files.append(File.generated(config, page, content=markdown(file.content_string, name)))


def markdown(notebook: str, name: str) -> str:
    """The page of a notebook."""
    title, *cells = json.loads(notebook)["cells"]
    parts = ["".join(title["source"]), f"[Download this notebook]({name})"]
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts += [f"```python\n{source}\n```", *map(_shown, cell["outputs"])]
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    kinds = output.get("data", {})
    if "image/png" in kinds:
        return _IMAGE.format("".join(kinds["image/png"]).replace("\n", ""))
    return f"```text\n{''.join(output.get('text') or kinds['text/plain']).rstrip()}\n```"
