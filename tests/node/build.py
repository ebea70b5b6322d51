"""The phases of deploy.py that make a release beside the one that serves, up to the moment before it is made current.

pyinfra -y tests/node/inventory.py tests/node/build.py
"""

from tasks import preflight, runtime
from tasks.support import refusal

with refusal.in_one_line():
    plan = preflight.admit(preflight.examine())
    runtime.build(plan)
