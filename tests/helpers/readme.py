"""Shell commands of the README and of docs/, so that they are run as they are printed.

A fenced ``bash`` block right below the comment ``<!-- ci: NAME -->`` is the command NAME of the README, which
``python tests/helpers/readme.py NAME`` prints. One below ``<!-- run: NAME -->`` is run by a test.
"""

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"

_BLOCK = re.compile(r"^<!-- ci: (?P<name>[\w-]+) -->\s*^```bash\n(?P<command>.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(text):
    """All marked commands of a README, by name.

    Raises:
        ValueError: if a comment is not followed by a ``bash`` block, or a name comes twice.
    """
    found = [(match["name"], match["command"]) for match in _BLOCK.finditer(text)]
    marked = re.findall(r"<!-- ci: .*?-->", text)
    if len(found) != len(marked) or len(dict(found)) != len(found):
        msg = f"Every `<!-- ci: NAME -->` needs a name of its own and a bash block right below it, but got {marked}."
        raise ValueError(msg)
    return dict(found)


def runnable(text):
    """The commands of a page that a test runs, by name."""
    return dict(re.findall(r"^<!-- run: ([\w -]+) -->\n```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


if __name__ == "__main__":
    print(commands(README.read_text(encoding="utf-8"))[sys.argv[1]], end="")
