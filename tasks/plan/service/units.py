"""Which units of systemd are ours. Anybody who may write units may call one sglang-pd-something."""

from __future__ import annotations

import re

from tasks.plan.service.paths import UNITS

_NAME = re.compile(r"sglang-pd-[a-z_]+(-[0-9]+)?\.service")  # of any server, also of versions to come
_SERVERS = re.compile(r"sglang-pd-((?:prefill|decode|server)(?:-[0-9]+)?|router)\.service")
_MEASURING = re.compile(r"sglang-pd-(probe|bench|jit)\.service")  # transient ones, while a run waits for them


def is_ours(unit: str) -> bool:
    """Whether a running unit has a name that this playbook gives."""
    return bool(_SERVERS.fullmatch(unit) or _MEASURING.fullmatch(unit))


def mark(unit: str) -> str:
    """The first line of a unit file of ours. It holds the name: a copy under another one is somebody else's."""
    return f"# {unit}, written by sglang-pd-playbook: the next run undoes edits made here."


def written_by_us(unit: str, text: str) -> bool:
    """Whether a file in /etc/systemd/system, by its name and content, is one of ours."""
    return bool(_NAME.fullmatch(unit)) and (text.startswith(mark(unit) + "\n") or _without_mark(unit, text))


def _without_mark(unit: str, text: str) -> bool:
    """As it was written until November 2026."""
    named = _SERVERS.fullmatch(unit)
    if not named:
        return False
    started = (
        rf"ExecStart=/\S+/bin/pd-launch --instance {re.escape(named[1])} --script /\S+ --environment /\S+ "
        rf"--unit {re.escape(f'{UNITS}/{unit}')} "
    )
    return re.search(rf"^{started}", text, re.MULTILINE) is not None
