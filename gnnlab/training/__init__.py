"""Training a model on a table: fast pair terms, loops raced to equal score, and a loop that survives being killed."""
