"""Data modules of public data sets and file formats."""
