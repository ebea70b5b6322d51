"""A host: what it answered, its topology."""
