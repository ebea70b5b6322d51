"""Several hosts that serve together: who plays what, where they reach each other, what they must have in common."""
