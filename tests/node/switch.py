"""As build.py, then the switch: checks, and `current` moves. What serves is not restarted.

pyinfra -y tests/node/inventory.py tests/node/switch.py
"""

from tasks import activate, preflight, runtime
from tasks.support import refusal

with refusal.in_one_line():
    plan = preflight.admit(preflight.examine())
    runtime.build(plan)
    activate.switch(plan)
