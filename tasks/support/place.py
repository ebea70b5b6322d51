"""Settings and paths of this host, for a part that plans nothing."""

from __future__ import annotations

from pyinfra import host

from tasks.plan.service.paths import Paths
from tasks.plan.settings.settings import Settings, load_alone
from tasks.support import catalogue


def here(*without: str) -> tuple[Settings, Paths]:
    """without: names that are no settings. Raises PlanError, one line a fault."""
    settings = load_alone({name: value for name, value in host.data.dict().items() if name not in without})
    return settings, Paths.of(settings, catalogue.stated(settings.model, settings.model_dir, settings.model_profiles))
