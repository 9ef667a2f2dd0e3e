"""The LightningModule with an optimizer and its schedule."""
