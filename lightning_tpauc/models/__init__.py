"""Backbones of the experiments."""
