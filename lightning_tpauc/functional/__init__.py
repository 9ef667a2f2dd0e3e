"""Pure functions: tensors in, tensors out."""
