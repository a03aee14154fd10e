"""What people pass in: batches as they come, how a model is called with them, which outputs are kept."""
