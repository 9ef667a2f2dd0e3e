"""Corrections of what Lightning does: resumed loops, checkpoint files, schedulers, hooks and unsupported flags."""
