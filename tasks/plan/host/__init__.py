"""A host: what it answered, its topology, the paths on it."""
