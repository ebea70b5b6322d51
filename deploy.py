"""From a bare GPU host to verified answers: the phases, in the order in which they depend on each other.

pyinfra inventory.py deploy.py --dry --diff     show what would change
pyinfra inventory.py deploy.py                  change it, after a look at the list
"""

from tasks import activate, driver, launch, model, preflight, retire, runtime, services, system, topology, verify
from tasks.support import refusal
from tasks.support.barrier import barrier

with refusal.in_one_line():
    seen = preflight.examine()  # settings; what host, cards and driver say
    driver.provide(seen)  # with manage_driver only; a host whose driver needs a reboot ends with it
    plan = preflight.admit(seen)  # checks, plan; a host that does not fit ends here, before anything changes
    system.provision(plan)  # packages, user, folders, kernel settings
    runtime.build(plan)  # the release with its patches, beside the one that serves
    model.ensure(plan)  # long to fetch: before anything stops
    topology.prove(plan)  # GPUs and CPUs of each server; copies, all_reduce and KV path measured
    barrier("installed")
    activate.switch(plan)  # checked, then current
    launch.write(plan)  # scripts, environment, units
    services.bring_up(plan)  # prefill and decode, then the router
    verify.ask(plan)  # golden answers through the router
    retire.releases(plan)  # the one that serves and the one before it stay
