"""The servers of a service: where they run, with what, on which paths, and what must restart."""
