"""The servers of a service: where they run, with what, and what must restart."""
