"""Faster forms: sums over neighbours, attention, and layers of PyG on them."""
