"""A host's hardware, recorded into a folder that `make rehearse HARDWARE=HOST` plays. Nothing changes on the host.

pyinfra -y --limit HOST inventory.py tasks.record.hardware
"""

from __future__ import annotations

from pyinfra import host, logger

from tasks.facts.recording import QUESTIONS, Recording, section_of
from tasks.plan.host.recording import read
from tasks.support import connection, recordings, refusal


def hardware() -> None:
    with refusal.in_one_line():
        connection.prepare()
        names = [host.name, str(host.data.get("ssh_hostname") or "")]
        files = read(host.get_fact(Recording), map(section_of, QUESTIONS), names)
        folder = recordings.write(host.name, files)
        logger.info(f"{host.print_prefix}{len(files)} files in {folder}, without names, addresses and serial numbers")
