"""Data modules, samplers and batches."""
