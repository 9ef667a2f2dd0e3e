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
