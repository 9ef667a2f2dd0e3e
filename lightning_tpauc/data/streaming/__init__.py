"""Negatives that are read one after another instead of being indexed."""
