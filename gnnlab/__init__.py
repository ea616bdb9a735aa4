"""gnnlab: what a graph neural network costs on your machine, and what makes it faster."""

__version__ = "0.1.0"
