"""pyinfra's own settings."""

from pyinfra import config

# One failed host ends the run, unless what it serves goes on without it (docs/fleet.md, a host that fails). Raise the
# limit with --fail-percent.
config.FAIL_PERCENT = 0
# Programs run in it also where /tmp is mounted noexec: pyinfra puts the helper there that hands sudo your password.
config.TEMP_DIR = "/var/tmp"
