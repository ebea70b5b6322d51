"""What is known about the hosts of one service, from their reports: one verdict, one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tasks.plan.fleet.members import Member
from tasks.plan.report import page
from tasks.plan.report.data import Data
from tasks.plan.report.summary import by_phase
from tasks.plan.settings.place import PARTS, ROUTER

FORMAT = 1
WORST = ("error", "incomplete", "unproven", "warning", "healthy")  # levels of a verdict
OLDER = "not in this run"


@dataclass(frozen=True)
class Report:
    """Of a host, as tasks.plan.report.data builds it. page: the file beside the service's."""

    data: Data
    page: str


def build(
    name: str,
    hosts: Sequence[Member],
    reports: Mapping[str, Report | None],
    runs: Mapping[str, Mapping[str, Any]],
    now: datetime,
) -> Data:
    """Everything that the page says, as plain values for JSON; what its hosts have, their own reports say.

    runs: host of this run -> tasks.plan.report.summary.HostRun.as_data. now: with a time zone.
    """
    every = [_host(member, reports.get(member.host), runs.get(member.host)) for member in hosts]
    return {
        "format": FORMAT,
        "service": name,
        "written": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "verdict": _verdict(name, every),
        "hosts": every,
    }


def _host(member: Member, report: Report | None, run: Mapping[str, Any] | None) -> Data:
    data = report.data if report else {}
    versions = data.get("versions") or {}
    return {
        "host": member.host,
        "roles": list(member.roles),
        "address": data.get("address") or member.reached,
        "page": report.page if report else None,
        "written": data.get("written"),
        "verdict": data.get("verdict"),
        "release": versions.get("release id"),
        "patches": versions.get("patches"),
        "router": versions.get("router") if ROUTER in member.roles else None,
        "proof": data.get("state"),
        "run": dict(run) if run else None,  # None where this run left the host out
        "last_run": data.get("run"),
    }


def _verdict(name: str, hosts: Sequence[Data]) -> Data:
    """The word and the sentence on top: of the worst that is known."""
    left = [f"{one['host']} ({one['run']['ending']})" for one in hosts if one["run"] and not one["run"]["good"]]
    if left:
        done = f"{len(hosts) - len(left)} of {len(hosts)} hosts have nothing left to do"
        return _said("error", "Not done", f"{name}: {', '.join(left)}; {done}.")
    releases: dict[str, list[str]] = {}
    for one in hosts:
        if one["release"] and one["roles"] != [ROUTER]:  # a router alone has a part of a release
            releases.setdefault(one["release"], []).append(one["host"])
    if len(releases) > 1:
        told = "; ".join(f"{', '.join(names)} {release}" for release, names in releases.items())
        return _said("error", "Two releases", f"{name}: servers of different releases exchange KV cache: {told}.")
    unknown = [one["host"] for one in hosts if not one["verdict"]]
    if unknown:
        return _said("incomplete", "Not known", f"{name}: no run has written a report of {', '.join(unknown)} here.")
    worst = min(hosts, key=lambda one: WORST.index(one["verdict"]["level"]))["verdict"]
    if worst["level"] == "healthy":
        return _said("healthy", worst["word"], f"{name} serves on {len(hosts)} hosts; {_answers(hosts)}.")
    same = [one for one in hosts if one["verdict"]["level"] == worst["level"]]
    more = f" (and {len(same) - 1} more of its hosts)" if len(same) > 1 else ""
    return _said(worst["level"], worst["word"], f"{worst['sentence'].rstrip('.')}{more}; {_answers(hosts)}.")


def _said(level: str, word: str, sentence: str) -> Data:
    return {"level": level, "word": word, "sentence": sentence}


def _answers(hosts: Sequence[Data]) -> str:
    asked = any(one["run"] and one["run"]["answers"] for one in hosts)
    return "the router answers right" if asked else "this run asked no router"


# ---- the page


def view(data: Data, reports: Mapping[str, Report | None]) -> dict[str, Any]:
    """What templates/service.html.j2 shows. reports: as for build."""
    hosts = [_row(one, reports.get(one["host"])) for one in data["hosts"]]
    plays = {role: sum(role in one["roles"] for one in data["hosts"]) for role in PARTS}
    return {
        "service": data["service"],
        "written": data["written"],
        "verdict": {**data["verdict"], "mark": page.MARKS[data["verdict"]["level"]]},
        "figures": [
            page.Figure(str(len(hosts)), "", "hosts"),
            *(page.Figure(str(count), "", f"with {role}") for role, count in plays.items()),
            *_slowest(reports),
        ],
        "hosts": hosts,
    }


def _slowest(reports: Mapping[str, Report | None]) -> list[page.Figure]:
    """Of the pairs that lie on one host: what was measured between them."""
    speeds = [
        pair["gbps"]
        for report in reports.values()
        if report
        for pair in report.data["kv_path"]
        if pair["gbps"] is not None
    ]
    return [page.Figure(page.figure(min(speeds)), "GB/s", "slowest KV pair within a host")] if speeds else []


def _row(one: Data, report: Report | None) -> Data:
    run = one["run"] or one["last_run"]
    verdict = one["verdict"] or {"level": "incomplete", "word": "Not known", "sentence": ""}
    release = [one["release"], f"patches {one['patches']}" if one["patches"] else ""]
    return {
        **one,
        "roles": ", ".join(one["roles"]),
        "address": one["address"] or "not known",
        "verdict": {**verdict, "mark": page.MARKS[verdict["level"]]},
        "runs": [word for word in release if word] or ["not known"],
        "ending": _ending(one),
        "changed": _changed(run) if run else "",
        "serves": run["serves"] if run else "",
        "restarts": [f"{server}: {why}" for server, why in run["restarts"].items()] if run else [],
        "shown": page.view(report.data) if report else None,
    }


def _ending(one: Data) -> str:
    if one["run"]:
        return str(one["run"]["ending"])
    return f"{OLDER}; report of {one['written']}" if one["written"] else OLDER


def _changed(run: Mapping[str, Any]) -> str:
    counted = f"{len(run['changed'])} of {run['operations']}"
    return f"{counted}: {by_phase(run['changed'])}" if run["changed"] else counted
