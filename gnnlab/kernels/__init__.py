"""Faster forms: sums over neighbours, attention, PyG layers on them, and a model with its layers swapped."""
