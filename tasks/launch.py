"""Launch scripts, environment files and units: all that the service is started from."""

from __future__ import annotations

from itertools import chain

from pyinfra import host
from pyinfra.api import deploy

from tasks.facts.paths import Paths
from tasks.facts.secret import Secret
from tasks.operations import files, passed, routes
from tasks.plan.files import FoundPath, WantedFile, as_wanted, read_secret
from tasks.plan.phases.passed import passed_config
from tasks.plan.phases.routing import workers_file
from tasks.plan.phases.verify import verify_config
from tasks.plan.plan import Plan
from tasks.plan.service.paths import UNITS
from tasks.support import catalogue, render


@deploy("Launch")
def write(plan: Plan) -> None:
    of_instances = [render.instance_files(plan, instance).all for instance in plan.instances]
    beside = [*render.devices(plan), *render.watchdog(plan)]
    asked, listed = verify_config(plan), workers_file(plan)
    wanted = [*chain.from_iterable(of_instances), *beside, render.target(plan), *([asked] if asked else [])]
    kept = [*catalogue.placed_tools(plan.paths.bin), *beside]
    wanted.append(passed_config(plan, [file.path for file in kept]))
    like = {
        file.path: first for _, *more in of_instances[1:] for file, first in zip(more, of_instances[0][1:], strict=True)
    }
    key, tls = render.api_key(plan), render.tls(plan)
    found = host.get_fact(Paths, paths=[file.path for file in (*wanted, *([listed] if listed else []))])
    found_key, left_of_key = _secret(plan.paths.secret, key, plan.paths.secret_leftovers)
    found_tls, left_of_tls = _secret(plan.paths.tls, tls, [f"{plan.paths.tls}.new"])

    changes = [not as_wanted(file, there) for file, there in ((key, found_key), (tls, found_tls))]
    changes += [not as_wanted(file, found[file.path]) for file in (*wanted, *([listed] if listed else []))]
    first = passed.before_changes(plan, any(changes))
    if key:
        files.file(name=f"API key {key.path}", wanted=key, found=found_key, first=first, leftovers=left_of_key)
    else:
        files.absent(name="No API key", path=plan.paths.secret, found=found_key, first=first, leftovers=left_of_key)
    if tls:
        files.file(
            name=f"Certificate and key {tls.path}", wanted=tls, found=found_tls, first=first, leftovers=left_of_tls
        )
    else:
        files.absent(name="No certificate", path=plan.paths.tls, found=found_tls, first=first, leftovers=left_of_tls)
    for file in wanted:
        then = "systemctl daemon-reload" if file.path.startswith(UNITS) else None
        files.file(
            name=f"File {file.path}",
            wanted=file,
            found=found[file.path],
            first=first,
            then=then,
            like=like.get(file.path),
        )
    if listed:
        routes.written(name=f"File {listed.path}", plan=plan, found=found[listed.path], first=first)


def _secret(path: str, wanted: WantedFile | None, leftovers: list[str]) -> tuple[FoundPath, list[str]]:
    """The file as it is on the host, told by a hash alone, and the leftovers that are there."""
    return read_secret(host.get_fact(Secret, path=path, salt=wanted.salt if wanted else "", leftovers=leftovers))
