"""The edge allocator as a service: decisions over HTTP, in batches, from a shared cache, recorded, observed."""
