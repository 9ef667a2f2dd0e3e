"""Compares methods on the same data, model, split and number of examples: does training for a rectangle help?

:func:`compare` trains them and writes tables, pictures and a page; ``lightning-tpauc compare`` does so with a
configuration. :mod:`~lightning_tpauc.comparison.training` trains one method once and keeps what came out in a file,
:mod:`~lightning_tpauc.comparison.results` compares the scores, and :mod:`~lightning_tpauc.comparison.report` writes.
"""

from lightning_tpauc.comparison.comparing import Comparison, compare
from lightning_tpauc.comparison.report import Report
from lightning_tpauc.comparison.results import Difference
from lightning_tpauc.comparison.training import Method, method_names

__all__ = ("Comparison", "Difference", "Method", "Report", "compare", "method_names")
