"""``python -m lightning_tpauc`` is ``lightning-tpauc``: what can be answered at once is, before torch is imported."""

import sys

from lightning_tpauc.version import __version__


def main() -> None:
    """Run the command that the process was started with; see :func:`lightning_tpauc.cli.main`."""
    words = sys.argv[1:]
    if words == ["--version"]:
        print(f"lightning-tpauc {__version__}")  # noqa: T201
        return
    if any(word in {"-h", "--help"} or word.partition("=")[0].endswith(".help") for word in words) or not words:
        print("Loading PyTorch and Lightning ...", file=sys.stderr, flush=True)  # noqa: T201
    from lightning_tpauc import cli

    cli.main()


if __name__ == "__main__":
    main()
