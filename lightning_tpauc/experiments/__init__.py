"""The experiments of the paper: methods x settings x folds x seeds, resumable, and the tables and figures made of them.

``examples/reproduce.py`` is the command. :mod:`~lightning_tpauc.experiments.catalog` says what is run,
:mod:`~lightning_tpauc.experiments.trial` runs one training, :mod:`~lightning_tpauc.experiments.runner` runs what is
missing, and the results lie in one SQLite file (:mod:`~lightning_tpauc.experiments.store`).
"""
