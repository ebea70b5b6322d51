"""Takes bare GPU hosts to a service that answers right: the phases, in the order in which they need each other.

pyinfra inventory.py deploy.py --dry --diff     show what would change
pyinfra inventory.py deploy.py                  show it, wait for Enter, then change it
"""

from tasks import (
    activate,
    driver,
    launch,
    model,
    monitoring,
    preflight,
    retire,
    runtime,
    services,
    system,
    topology,
    verify,
)
from tasks.support import refusal
from tasks.support.barrier import barrier

with refusal.in_one_line():
    seen = preflight.examine()  # read the settings; ask the host about its system, GPUs and driver
    driver.provide(seen)  # only with manage_driver; where the host must reboot for it, its run ends here
    plan = preflight.admit(seen)  # check host and plan; a host that does not fit is refused, nothing has changed on it
    system.provision(plan)  # packages, service user, folders, kernel settings
    runtime.build(plan)  # build the release with its patches, beside the one that serves
    model.ensure(plan)  # before anything stops, since fetching takes long
    topology.prove(plan)  # give each server GPUs and CPUs; measure copies, all_reduce and the KV path
    barrier("installed")
    activate.switch(plan)  # check the release, then make it current
    launch.write(plan)  # launch scripts, environment files, units
    services.bring_up(plan)  # prefill and decode, then the router
    verify.ask(plan)  # questions with known answers, through the router
    retire.releases(plan)  # keep the release that serves and the one before it
    monitoring.watch(plan)  # Prometheus, exporters, alert rules; nothing unless the setting monitoring asks for it
