"""Model + examples → the rows of G, the gradients of the chosen outputs, each in its smallest form."""
