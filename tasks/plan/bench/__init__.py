"""The benchmark of a running service: its figures and its page."""
