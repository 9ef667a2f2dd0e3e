"""Compares methods on the same data, model, split and number of examples: does training for a rectangle help?

:func:`compare` trains them and writes tables, pictures and a page; ``lightning-tpauc compare`` does so with a
configuration. :mod:`~lightning_tpauc.comparison.plan` says what is trained, :mod:`~lightning_tpauc.comparison.training`
trains one cell, :mod:`~lightning_tpauc.comparison.store` keeps what has finished,
:mod:`~lightning_tpauc.comparison.resampling` draws, :mod:`~lightning_tpauc.comparison.results` compares, and
:mod:`~lightning_tpauc.comparison.report` writes.
"""

from lightning_tpauc.comparison.comparing import Comparison, compare
from lightning_tpauc.comparison.plan import Method, method_names
from lightning_tpauc.comparison.report import Report
from lightning_tpauc.comparison.results import Difference

__all__ = ("Comparison", "Difference", "Method", "Report", "compare", "method_names")
