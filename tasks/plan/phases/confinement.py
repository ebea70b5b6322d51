"""How units of ours are confined: by the sandbox, by the network filter, and by what a user sets instead."""

from __future__ import annotations

from tasks.plan.plan import Plan
from tasks.plan.service import network, sandbox
from tasks.plan.service.instances import Instance
from tasks.plan.service.options import Option, replaced
from tasks.plan.service.watching import Watched


def of_instance(plan: Plan, instance: Instance) -> tuple[Option, ...]:
    """Of the unit that runs a server or the router."""
    if instance.is_worker:
        confined = sandbox.of_server(plan.settings, plan.paths, on_gpu=plan.on_gpu)
        filtered = network.of_server(plan.settings, instance.address)
    else:
        confined = sandbox.of_router(plan.settings)
        filtered = network.of_router(plan.settings)
    return replaced((*confined, *filtered), plan.settings)


def of_service(plan: Plan) -> tuple[Option, ...]:
    """More of of_instance, which systemd adds to it: a host that joins the service or leaves it restarts nobody."""
    return network.of_service(plan.settings)


def of_tool(plan: Plan) -> tuple[Option, ...]:
    """Of the units in which a run measures, compiles, or looks at something as a server would."""
    confined = sandbox.of_tool(plan.settings, plan.paths, on_gpu=plan.on_gpu)
    return replaced((*confined, *network.of_tool(plan.settings)), plan.settings)


def of_watchdog(plan: Plan) -> tuple[Option, ...]:
    """Of the unit that asks the service and restarts what is at fault."""
    return replaced((*sandbox.of_watchdog(plan.settings), *network.of_tool(plan.settings)), plan.settings)


def of_figures(plan: Plan) -> tuple[Option, ...]:
    """Of the unit that writes figures of the host."""
    confined = sandbox.of_figures(plan.settings, on_gpu=plan.on_gpu)
    return replaced((*confined, *network.of_tool(plan.settings)), plan.settings)


def of_forwarder(plan: Plan) -> tuple[Option, ...]:
    """Of the unit that shows this host's figures to the Prometheus of another."""
    assert plan.watching
    own = (plan.watching.address, *Watched(plan.watching.address, plan.settings).addresses)
    options = (*sandbox.of_router(plan.settings), *network.of_figures(own, plan.watching.asked_from))
    return replaced(options, plan.settings)


VIEW = ("ProtectHome", "PrivateTmp")  # what hides files of the host from a server


def view(plan: Plan) -> list[str]:
    """Lines of a unit that sees of the host what a server sees, whose folders may not be there yet."""
    of_server = of_instance(plan, plan.instances[0])  # the router's where it runs alone
    return [line for option in of_server if option.name in VIEW for line in option.lines]
