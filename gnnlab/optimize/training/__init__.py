"""Training a model on a table: one loop with switches (`loop`, `recipe`), and what is measured of it (`study`)."""
