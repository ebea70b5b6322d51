"""For every test."""

from hypothesis import settings

# No test judges by the clock; the same examples each time, so that a failure is everybody's.
settings.register_profile("playbook", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("playbook")
