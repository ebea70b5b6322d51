"""What the hosts of one service must have in common: KV moves between them, and one router speaks for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tasks.plan.errors import PlanError
from tasks.plan.fleet.members import Member
from tasks.plan.plan import Plan
from tasks.plan.settings.roles import PAIR
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
    out = [one.host for one in found if not one.taken and not {*PAIR}.isdisjoint(one.roles)]
    asked = {name for one in found if one.taken for name in ("rollback", "unpin") if getattr(every[one.host], name)}
    if out and asked:
        raise PlanError(
            f"setting {' and '.join(sorted(asked))} = True changes the release, and --limit leaves out "
            f"{', '.join(out)}: servers of two releases must exchange no KV; run deploy.py without --limit"
        )


def minimums(every: Mapping[str, Settings]) -> None:
    """Raises PlanError with a line for each minimum that the service's servers can never reach."""
    lines = []
    for role in PAIR:
        there = sum(one.roles[role].instances for one in every.values() if role in one.roles)
        lines += [
            f"{host}: setting minimum_{role} = {asked}, but the service has {there} {role}: its router would wait for "
            "ever; lower it"
            for host, one in every.items()
            if (asked := {"prefill": one.minimum_prefill, "decode": one.minimum_decode}[role]) and asked > there
        ]
    if lines:
        raise PlanError(*lines)


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
