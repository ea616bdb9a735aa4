"""Which device should run which stages of a layer: plans costed, ranked and executed."""
