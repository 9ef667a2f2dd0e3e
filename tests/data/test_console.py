import subprocess
import sys

import pytest
import rich
from rich.console import Console
from rich.progress import track

from lightning_tpauc.data.console import bar_console


def test_nothing_is_written_into_a_pipe(capsys):
    console = bar_console()
    assert list(track(range(3), console=console, disable=console.quiet)) == [0, 1, 2]
    assert console.quiet
    assert capsys.readouterr() == ("", "")


def test_a_terminal_keeps_its_console(monkeypatch):
    terminal = Console(force_terminal=True)
    monkeypatch.setattr(rich, "_console", terminal)
    assert bar_console() is terminal


@pytest.mark.parametrize("module", ["targets", "arrays", "svmlight", "datamodule"])
def test_the_order_of_imports_leaves_lightnings_types_alone(module):
    code = (
        f"import lightning_tpauc.data.{module}, typing; from lightning.pytorch import Trainer; "
        "print(typing.get_args(typing.get_type_hints(Trainer.__init__)['limit_train_batches'])[0])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "<class 'int'>"
