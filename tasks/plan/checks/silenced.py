"""The setting silenced_checks: which checks a user may silence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tasks.plan.checks.registry import CHECKS
from tasks.plan.errors import PlanError, nearest


def check_silenced(silenced: Mapping[str, str], of_proof: Iterable[str]) -> None:
    """Raises PlanError with one line for each check that cannot be silenced, or not so.

    silenced: check id -> reason. of_proof: ids beside those of CHECKS.
    """
    lines, known = [], [*CHECKS, *of_proof]
    for check, reason in silenced.items():
        if check not in known:
            lines.append(f"setting silenced_checks names no check {check!r}.{nearest(check, known)}")
        elif check in CHECKS and CHECKS[check].never_silenced:
            lines.append(f"setting silenced_checks: no plan can be made where {check} fails: leave it out")
        elif not reason.strip():
            lines.append(f"setting silenced_checks[{check!r}] gives no reason: say why it is accepted on this host")
    if lines:
        raise PlanError(*lines)
