"""What the hosts of one service must have in common: KV moves between them, and one router speaks for all."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from tasks.plan.errors import PlanError, quoted
from tasks.plan.fleet.members import Member
from tasks.plan.plan import Plan
from tasks.plan.settings.roles import ROLES
from tasks.plan.settings.settings import Settings

# Settings that must be the same on each host. SGLang itself compares page size and KV type, at the first contact.
COMMON = (
    "layout", "release", "environment", "patches", "more_patches", "torch_wheel", "model", "model_revision",
    "model_profiles", "served_name", "context_length", "transfer_backend", "kv_checksum", "speculative",
)  # fmt: skip


def settings(service: str, every: Mapping[str, Settings]) -> None:
    """Raises PlanError with a line for each setting in which hosts of a service differ. every: by host."""
    first, *others = every
    lines = []
    for name in COMMON:
        wanted = getattr(every[first], name)
        other = next((host for host in others if getattr(every[host], name) != wanted), None)
        if other:
            lines.append(
                f"setting {name} differs within service {service!r}: {first} has {wanted!r}, {other} has "
                f"{getattr(every[other], name)!r}; they serve together, give both the same"
            )
    if lines:
        raise PlanError(*lines)


def releases(found: Sequence[Member], every: Mapping[str, Settings]) -> None:
    """Raises PlanError, one line, where --limit takes some servers to another release and keeps the rest."""
    out = [one.host for one in found if one.limited and not {*ROLES}.isdisjoint(one.roles)]
    asked = {name for one in found if one.taken for name in ("rollback", "unpin") if getattr(every[one.host], name)}
    if out and asked:
        raise PlanError(
            f"setting {' and '.join(sorted(asked))} = True changes the release, and --limit leaves out "
            f"{', '.join(out)}: servers of two releases must exchange no KV; run deploy.py without --limit"
        )


def minimums(every: Mapping[str, Settings]) -> None:
    """Raises PlanError with a line for each minimum that the service's servers can never reach."""
    lines = [
        f"{host}: setting minimum_{role} = {asked}, but the service has {there} {role}: its router would wait for "
        "ever; lower it"
        for role in _roles(every.values())
        for there in [_servers(every.values(), role)]
        for host, one in every.items()
        if (asked := one.minimum(role)) > there
    ]
    if lines:
        raise PlanError(*lines)


def lacking(service: str, every: Mapping[str, Settings], without: Collection[str]) -> list[str]:
    """Why a service is left alone when a run does nothing on some of its hosts; [] where the others are enough.

    every: by host. without: those that failed.
    """
    left = {host: settings for host, settings in every.items() if host not in without}
    names = " and ".join(sorted(without))
    lines = []
    for role in _roles(every.values()):
        needed = max((one.minimum(role) for one in every.values()), default=0)
        there = _servers(left.values(), role)
        if there < needed:
            lines.append(
                f"service {service!r} needs {needed} {role} (setting minimum_{role}); without {names} it has {there}"
            )
    lines += [
        f"service {service!r} has a router on {host}, which would go on sending requests to servers that restart: mend "
        "that host, or take it out of the list router"
        for host, one in every.items()
        if host in without and one.routes
    ]
    return lines


def _roles(every: Iterable[Settings]) -> list[str]:
    """Of the servers that a service has."""
    played = {role for one in every for role in one.roles}
    return [role for role in ROLES if role in played]


def _servers(every: Iterable[Settings], role: str) -> int:
    return sum(one.roles[role].instances for one in every if role in one.roles)


def serves_otherwise(plan: Plan, told: Mapping[str, object]) -> list[str]:
    """In what a server that this run leaves alone differs from the plan, a few words each.

    told: as SGLang answers to /server_info. What it does not tell is not compared.
    """
    moves = plan.settings.transfer_backend if plan.settings.layout == "pd" else None  # others tell SGLang's default
    return [
        f"{what} {quoted(str(theirs))}, wanted is {mine}"
        for what, mine, theirs in (
            ("SGLang", plan.release.manifest.sglang, told.get("version")),
            ("model", plan.profile.served_name, told.get("served_model_name")),
            ("page size", plan.profile.page_size, told.get("page_size")),
            ("KV type", plan.profile.kv_cache_dtype, told.get("kv_cache_dtype")),
            ("context", plan.context_length, told.get("context_length")),
            ("transfer backend", moves, told.get("disaggregation_transfer_backend")),
        )
        if mine not in (None, "auto") and theirs not in (None, "auto") and mine != theirs
    ]


def settled(one: str, plan: Plan, other: str, planned: Plan) -> None:
    """As settings, for what hosts were asked for: the release that each is held on, models read from a folder."""
    told = [
        f"{one} and {other} serve together, but {what} differs: {mine} and {theirs}; {advice}"
        for what, mine, theirs, advice in (
            (
                "the release",
                plan.release.manifest.name,
                planned.release.manifest.name,
                "name one release, and --data unpin=True where a rollback holds a host",
            ),
            ("the page size", plan.profile.page_size, planned.profile.page_size, "give both the same model"),
            ("the KV type", plan.profile.kv_cache_dtype, planned.profile.kv_cache_dtype, "give both the same model"),
            ("the context", plan.context_length, planned.context_length, "give both the same model"),
        )
        if mine != theirs
    ]
    if told:
        raise PlanError(*told)
