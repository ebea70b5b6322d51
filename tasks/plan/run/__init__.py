"""A run of the playbook: who runs which version on a host, how it ended, and what a later run makes of that."""
