"""What is transfer and what is compute, and the time of a block at a size that nobody measured."""
