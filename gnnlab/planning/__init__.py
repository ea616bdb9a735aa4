"""Which unit should run which stages, and carrying it out."""
