"""The LightningModule that scores examples: how inputs reach the model, and what validation and test report."""
