"""What differs on a host between wanted, on disk and running. Nothing is changed, and no operation stands here.

make drift HOST=NAME     a table; docs/drift.md
"""

from __future__ import annotations

import json

from pyinfra import host

from tasks import preflight
from tasks.facts.paths import Paths
from tasks.facts.units import Units
from tasks.plan.report import drift
from tasks.plan.service.restarts import read_units
from tasks.support import refusal, render

with refusal.in_one_line():
    plan = preflight.admit(preflight.examine())
    files = {instance.name: render.instance_files(plan, instance) for instance in plan.instances}
    asked = [plan.paths.current, *(file.path for of_one in files.values() for file in of_one.all)]
    found = drift.rows(
        plan,
        {name: of_one.all for name, of_one in files.items()},
        {name: of_one.fingerprint for name, of_one in files.items()},
        host.get_fact(Paths, paths=asked),
        read_units(host.get_fact(Units, **plan.units), plan.instances, plan.target),
    )
    print(json.dumps({"host": host.name, "rows": [row.as_data() for row in found]}))  # for tasks.support.drift
