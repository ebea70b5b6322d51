"""apt, on a host where others use it too."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pyinfra.api import Host, State

from tasks.operations.progress import run_and_log

LIMIT = 600  # seconds to wait for another apt: the daily upgrade of a host that has just booted takes minutes
# apt fails at once where another one has a lock; DPkg::Lock::Timeout waits for dpkg's lock alone, not for those of the
# lists and archives (docker-install#366, netlab#2473). needrestart must neither ask nor restart a server.
_SCRIPT = r"""
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
end=$(($(date +%s) + LIMIT)) told=
until said=$(apt-get -y -q "$@" 2>&1); do
  lock=$(printf '%s\n' "$said" | grep -m 1 'Could not get lock')
  if [ -z "$lock" ] || [ "$(date +%s)" -ge "$end" ]; then printf '%s\n' "$said" | tail -n 20; exit 1; fi
  [ "$lock" = "$told" ] || printf 'waits for another apt, at most LIMIT s: %s\n' "${lock#E: }"
  told=$lock
  sleep 2
done
"""


def apt_get(state: State, host: Host, words: Sequence[str], before: str = "", failed: str = "") -> bool:
    """Run apt-get; what it waits for is shown, and its last lines where it fails. False when it fails.

    before: a command that must succeed first. failed: a command that follows a failure.
    """
    script = f"{before or 'true'} && ( set -- {shlex.join(words)}; {_SCRIPT.replace('LIMIT', str(LIMIT))} )"
    return run_and_log(state, host, f"{script} || {{ {failed or 'true'}; exit 1; }}")
