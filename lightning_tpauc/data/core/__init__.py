"""From data sets to batches."""
