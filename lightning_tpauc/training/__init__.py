"""What a training does besides the step: its state, its stages, and its checkpoints."""
