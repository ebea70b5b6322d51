"""One archive for whoever helps: reports, units, journals, versions, facts; secrets and prompts are taken out.

make bundle HOST=NAME     docs/parts.md
"""

from __future__ import annotations

from pyinfra import host

from tasks.facts.bundle import Bundle
from tasks.plan.report import bundle
from tasks.support import bundles, connection, place, refusal, summary


def write() -> None:
    with refusal.in_one_line():
        data = host.data.dict()
        wanted, paths = place.here()
        connection.prepare()
        sections = host.get_fact(
            Bundle,
            config=paths.config,
            root=paths.root,
            secret=paths.secret,
            tls=paths.tls,
            user=wanted.service_user,
            theirs=[paths.measured],
        )
        more = bundles.from_here(host.name, data, wanted.report_dir)
        found = bundle.files(sections, more, bundles.known_secrets(data))
        path = bundles.write(host.name, found)
        summary.last(host, f"{path}: {len(found)} files, without secrets and prompts; look into it before you send it")
