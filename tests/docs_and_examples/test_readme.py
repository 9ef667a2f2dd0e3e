import re
import subprocess
import sys

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.readme import README, commands

EXAMPLE = """# Title
<!-- ci: first -->
```bash
pip install .
run --all
```
text
```bash
not marked
```
<!-- ci: second -->

```bash
test
```
"""


def test_marked_blocks_are_found():
    assert commands(EXAMPLE) == {"first": "pip install .\nrun --all\n", "second": "test\n"}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("<!-- ci: a -->\ntext\n```bash\nx\n```\n", id="text between"),
        pytest.param("<!-- ci: a -->\n```python\nx\n```\n", id="not bash"),
        pytest.param(EXAMPLE + EXAMPLE, id="twice"),
    ],
)
def test_unusable_marks_are_refused(text):
    with pytest.raises(ValueError, match="needs a name of its own and a bash block"):
        commands(text)


def test_readme_has_the_two_commands_that_ci_runs():
    named = commands(README.read_text(encoding="utf-8"))
    assert set(named) == {"quickstart", "tests"}
    assert "--config configs/quickstart.yaml" in named["quickstart"]
    assert "pytest" in named["tests"]
    for command in named.values():
        # `bash -e` passes over a failure left of `&&`; only in the last line does it become the script's own.
        assert not any("&&" in line for line in command.splitlines()[:-1])
        assert subprocess.run(["bash", "-n"], input=command, text=True, check=False).returncode == 0


def test_command_line_prints_one_command():
    script = [sys.executable, "tests/helpers/readme.py", "tests"]
    printed = subprocess.run(script, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert printed == commands(README.read_text(encoding="utf-8"))["tests"]


def test_readme_links_point_to_files_that_exist():
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", README.read_text(encoding="utf-8"))
    missing = [link for link in links if not (ROOT / link).exists()]
    assert not missing
