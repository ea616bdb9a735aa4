"""A layer's stages: exported, and measured on every device."""
