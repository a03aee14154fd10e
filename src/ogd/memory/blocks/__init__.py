"""The abstract `Block`, which stores the gradients of one layer, and one file for each kind of block."""
