"""A connection on which nothing is said until the host has seen a keepalive of it: with a short interval.

pyinfra -y tests/node/inventory.py tests/node/idle.py
"""

from pyinfra import host
from pyinfra.facts.server import Command

from tasks.support import connection

connection.KEEPALIVE = 1
connection.prepare()
seen = "journalctl -u ssh -o cat --since -60s | grep -q keepalive@lag.net"
assert host.get_fact(Command, f"timeout 60 sh -c 'until {seen}; do sleep 0.2; done' && echo seen") == "seen"
