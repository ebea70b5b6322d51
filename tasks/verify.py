"""Right answers through the router, streaming and not; then what the service was started from is kept."""

from __future__ import annotations

from pyinfra.api import deploy

from tasks.operations import passed, verify
from tasks.plan.plan import Plan
from tasks.plan.service.paths import RUN
from tasks.support.barrier import barrier


@deploy("Verify")
def ask(plan: Plan) -> None:
    if plan.router:
        verify.answers(
            name="Golden questions through the router",
            plan=plan,
            tool=f"{plan.paths.bin}/pd-verify",
            config=plan.paths.verify,
            # of servers elsewhere nothing here says whether they are the same processes as before
            answered=f"{RUN}/answered.json" if plan.settings.place.alone else None,
            depends=[f"{plan.paths.run(instance.name)}/fingerprint.json" for instance in plan.instances],
        )
    barrier("answers")
    passed.kept(name="Kept as what passed last", plan=plan)
