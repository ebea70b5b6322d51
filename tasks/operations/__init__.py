"""What changes a host: each operation compares wanted with found and yields only the difference.

What was found is read once for a whole phase and handed in, so that a run with nothing to change costs no command
for each operation.
"""
