"""Training a model on a table: fast pair terms, and loops raced to equal score."""
