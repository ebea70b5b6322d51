"""A run that looks at its hosts, then holds on until a file is there: what another run meets meanwhile.

pyinfra -y tests/node/inventory.py tests/node/held.py
"""

from pyinfra.operations import server

from tasks import preflight
from tasks.support import refusal

with refusal.in_one_line():
    preflight.examine()
    server.shell(name="Held", commands=["until [ -e /run/pd-test-go ]; do sleep 0.1; done"])
    server.shell(name="After", commands=["touch /run/pd-test-after"])
