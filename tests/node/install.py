"""The phases of deploy.py that install a release and make it current, and no more: what needs neither GPU nor model.

pyinfra -y tests/node/inventory.py tests/node/install.py
"""

from tasks import activate, preflight, runtime, system
from tasks.support import refusal

with refusal.in_one_line():
    plan = preflight.admit(preflight.examine())
    system.provision(plan)
    runtime.build(plan)
    activate.switch(plan)
