"""Whether this run only shows what it would do."""

import sys


def is_dry() -> bool:
    """pyinfra keeps that to itself, and its command line knows one spelling."""
    return "--dry" in sys.argv[1:]
