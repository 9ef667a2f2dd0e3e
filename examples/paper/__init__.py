"""The experiments of the paper: methods x settings x folds x seeds, resumable, and the tables and figures made of them.

``examples/reproduce.py`` is the command. :mod:`~examples.paper.catalog` says what is run,
:mod:`~examples.paper.trial` runs one training, :mod:`~examples.paper.runner` what is missing, and
:mod:`~examples.paper.report` writes tables and pictures.
"""
