"""What a model needs from its servers."""
