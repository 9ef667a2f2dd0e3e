"""``python -m lightning_tpauc`` is ``lightning-tpauc``."""

from lightning_tpauc.cli import main

if __name__ == "__main__":
    main()
