"""One archive for whoever helps: reports, units, journals, versions, facts; secrets and prompts are taken out.

make bundle HOST=NAME     docs/parts.md
"""

from __future__ import annotations

from pyinfra import host

from tasks.facts.bundle import Bundle
from tasks.plan.report import bundle
from tasks.plan.service.paths import Paths
from tasks.plan.settings import settings
from tasks.support import bundles, catalogue, connection, refusal, summary


def write() -> None:
    with refusal.in_one_line():
        data = host.data.dict()
        wanted = settings.load(data)
        paths = Paths.of(wanted, catalogue.stated(wanted.model, wanted.model_dir, wanted.model_profiles))
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
