"""Decisions of the edge allocator, fast: the predictor, its options, what serving takes, what is measured of it."""
