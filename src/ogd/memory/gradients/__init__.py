"""Model + examples → the rows of G: how each weight was used, and the gradient of each output in its smallest form."""
