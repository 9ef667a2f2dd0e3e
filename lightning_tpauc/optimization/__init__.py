"""The default optimizer, the warm-up of its rate, and the module that takes the steps."""
