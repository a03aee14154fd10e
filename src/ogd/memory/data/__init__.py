"""The data that users pass: batches, labels, budgets, which examples are drawn, how a model is called with them."""
