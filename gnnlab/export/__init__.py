"""A layer's stages as models of other runtimes, each checked before it counts."""
