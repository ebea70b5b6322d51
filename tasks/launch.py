"""Launch scripts, environment files and units: all that the service is started from."""

from __future__ import annotations

from itertools import chain

from pyinfra import host
from pyinfra.api import deploy

from tasks.facts.paths import Paths
from tasks.facts.secret import Secret
from tasks.operations import files
from tasks.plan.files import read_secret
from tasks.plan.phases.passed import passed_config
from tasks.plan.phases.verify import verify_config
from tasks.plan.plan import Plan
from tasks.plan.service.paths import UNITS
from tasks.support import catalogue, render


@deploy("Launch")
def write(plan: Plan) -> None:
    of_instances = [render.instance_files(plan, instance).all for instance in plan.instances]
    wanted = [*chain.from_iterable(of_instances), *render.devices(plan), render.target(plan), verify_config(plan)]
    kept = [*catalogue.placed_tools(plan.paths.bin), *render.devices(plan)]
    wanted.append(passed_config(plan, [file.path for file in kept]))
    like = {
        file.path: first for _, *more in of_instances[1:] for file, first in zip(more, of_instances[0][1:], strict=True)
    }
    secret = render.api_key(plan)
    found = host.get_fact(Paths, paths=[file.path for file in wanted])
    told = host.get_fact(
        Secret, path=plan.paths.secret, salt=secret.salt if secret else "", leftovers=plan.paths.secret_leftovers
    )
    key, leftovers = read_secret(told)

    if secret:
        files.file(name=f"API key {secret.path}", wanted=secret, found=key, leftovers=leftovers)
    else:
        files.absent(name="No API key", path=plan.paths.secret, found=key, leftovers=leftovers)
    for file in wanted:
        then = "systemctl daemon-reload" if file.path.startswith(UNITS) else None
        files.file(name=f"File {file.path}", wanted=file, found=found[file.path], then=then, like=like.get(file.path))
