"""What is known about a host, as data for the report: findings, placement, hardware, versions, and the proof."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tasks.plan.findings import Finding, Level
from tasks.plan.host.answers import Hardware
from tasks.plan.host.matrices import spell_number_list
from tasks.plan.plan import Plan
from tasks.plan.proof import probe
from tasks.plan.proof.judgement import FRESH, NONE, transfer_seconds
from tasks.plan.service.placement import kv_writes, sockets

FORMAT = 2  # raised where what stands in a report changes its form
LEVELS = (Level.ERROR, Level.INCOMPLETE, Level.WARNING, Level.SILENCED, Level.HEALTHY)  # in the order to be read

Data = dict[str, Any]


def build(
    host: str,
    plan: Plan | None,
    findings: Iterable[Finding],
    proof: Mapping[str, Any] | None,
    state: str,
    now: datetime,
) -> Data:
    """Everything that the report says, as plain values for JSON.

    plan: None where the host was refused before there was one. proof: what pd-probe left, None where nothing was
    measured. state: "fresh", "none", or why the proof is stale. now: with a time zone.
    """
    judged = sorted(findings, key=lambda one: (LEVELS.index(one.level), not one.stops))
    path = kv_path(proof, plan)
    return {
        "format": FORMAT,
        "host": host,
        "written": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "layout": plan.settings.layout if plan else None,
        "address": plan.settings.place.address if plan else None,
        "verdict": verdict(host, judged, path, state, plan.settings.layout if plan else None),
        "findings": [finding.as_data() for finding in judged],
        "device": plan.release.manifest.device if plan else None,
        "placement": _placement(plan) if plan else [],
        "writes": kv_writes(i.placement for i in plan.workers if i.placement) if plan else [],
        "hardware": _hardware(plan.hardware) if plan else None,
        "versions": _versions(plan, proof) if plan else {},
        "state": state,
        "age": age(proof, now),
        "kv_pages": _kv_pages(plan) if plan else None,
        "model": _model(plan) if plan else None,
        "kv_path": path,
        "proof": dict(proof) if proof else None,
        "run": None,  # tasks.plan.report.summary.HostRun.as_data, once the run is over
    }


def is_ours(data: object) -> bool:
    """Whether what lies in a file is a host's report of this form."""
    return isinstance(data, dict) and data.get("format") == FORMAT


def warnings(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a report, what somebody should look at although it stops nothing: a line each."""
    return tuple(
        f"{finding['id']}: {finding['line']}"
        for finding in data["findings"]
        if finding["advice"]
        and (finding["level"] == Level.WARNING or (finding["level"] == Level.INCOMPLETE and not finding["required"]))
    )


def verdict(host: str, findings: Sequence[Finding], path: Sequence[Data], state: str, layout: str | None) -> Data:
    """The word and the sentence on top. Level: the worst that was found, "unproven" where only a proof is missing.

    layout: None where there is no plan.
    """
    stops = [finding for finding in findings if finding.stops]
    doubts = [one for one in findings if not one.stops and one.level in (Level.WARNING, Level.INCOMPLETE)]
    if stops:
        more = f" (and {len(stops) - 1} more)" if len(stops) > 1 else ""
        return _verdict(stops[0].level, "Refused", f"{host} must not serve: {stops[0].line.rstrip('.')}{more}.")
    warned = f"{_count(len(doubts), 'warning')} to look at" if doubts else "every check healthy"
    if layout is None:
        return _verdict("incomplete", "Not judged", f"{host} was not read far enough for a plan: {warned}.")
    if state == NONE:
        missing = "its KV path has" if layout == "pd" else "the links between its GPUs have"
        sentence = f"{host} may serve as far as its checks tell, but {missing} not been measured yet: {warned}."
        return _verdict("unproven", "Not measured", sentence)
    if state != FRESH:
        why = state.removeprefix("stale").lstrip(": ")
        return _verdict("unproven", "Stale", f"{host} was proven once, but no longer is: {why}; {warned}.")
    return _verdict(
        Level.WARNING if doubts else Level.HEALTHY,
        "Proven, with warnings" if doubts else "Proven",
        f"{host} serves{_speed(path)}; {warned}.",
    )


def _verdict(level: str, word: str, sentence: str) -> Data:
    return {"level": str(level), "word": word, "sentence": sentence}


def _speed(path: Sequence[Data]) -> str:
    slowest = min((one for one in path if one["gbps"] is not None), key=lambda one: one["gbps"], default=None)
    if slowest is None:
        return ""
    share = f", {slowest['share']:.2f} of a plain copy" if slowest["share"] is not None else ""
    return f": its slowest KV pair moves {slowest['gbps']:.1f} GB/s{share}"


def age(proof: Mapping[str, Any] | None, now: datetime) -> Data | None:
    """When the proof began, how long it took, and how old it is in words; None without one."""
    if not proof or not proof.get("started"):
        return None
    started = datetime.fromisoformat(str(proof["started"]).replace("Z", "+00:00"))
    seconds = max(0, int((now - started).total_seconds()))
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            words = f"{_count(seconds // length, unit)} ago"
            break
    else:
        words = "just now"
    depends = proof.get("depends") or {}
    return {"words": words, "started": proof["started"], "took": proof.get("seconds"), "boot": depends.get("boot")}


def kv_path(proof: Mapping[str, Any] | None, plan: Plan | None) -> list[Data]:
    """Each pair of the KV path with what follows from its figures.

    gbps: with the largest descriptors, alone. share: of the plain copy of the same pair. seconds: of transfer for
    1,000 prompt tokens, by way ("alone", "together"), pages apart ("split") and contiguous ones merged.
    """
    part = ((proof or {}).get("parts") or {}).get("kv_path") or {}
    found = []
    for pair in part.get("pairs") or []:
        alone = sorted(pair.get("alone") or [], key=lambda row: row["descriptor_bytes"])
        together = sorted(pair.get("together") or [], key=lambda row: row["descriptor_bytes"])
        gbps = alone[-1].get("gbps") if alone else None
        plain = pair.get("plain_gbps")
        found.append(
            {
                "prefill": pair.get("prefill"),
                "decode": pair.get("decode"),
                "from": pair.get("from"),
                "to": pair.get("to"),
                "cuda_ipc": pair.get("cuda_ipc"),
                "lane": pair.get("lane"),
                "plain_gbps": plain,
                "gbps": gbps,
                "share": gbps / plain if gbps is not None and plain else None,
                "alone": alone,
                "together": together,
                "seconds": {
                    way: transfer_seconds(rows, plan.profile, plan.settings.prefill.tensor_parallel) if plan else None
                    for way, rows in (("alone", alone), ("together", together))
                },
            }
        )
    return found


def _kv_pages(plan: Plan) -> Data:
    """What one rank sends of each page of tokens."""
    profile, parallel = plan.profile, plan.settings.prefill.tensor_parallel
    return {
        "tokens": profile.page_size or 1,
        "buffers": [
            {"name": one.name, "count": one.count, "bytes": probe.page_bytes(one, profile, parallel)}
            for one in profile.kv_buffers
        ],
    }


def _model(plan: Plan) -> Data:
    """The model, and how it fits the cards: GB of each card, and tokens. memory: [] where servers use no GPU."""
    fits = plan.fits if plan.on_gpu else {}
    return {
        "name": plan.profile.name,
        "served_name": plan.profile.served_name,
        "folder": plan.paths.model,
        "config": plan.model_told,
        "derived": list(plan.derived),
        "context_length": plan.context_length,
        "memory": [
            {
                "server": name,
                "card_gb": one.card,
                "fraction": one.fraction,
                "weights_gb": one.weights,
                "kv_gb": one.kv,
                "kv_tokens": one.tokens,
                "left_gb": one.left,
            }
            for name, one in fits.items()
        ],
    }


def _placement(plan: Plan) -> list[Data]:
    return [
        {
            "name": worker.name,
            "role": worker.role,
            "gpus": list(worker.placement.gpus),
            "numa_nodes": list(worker.placement.numa_nodes),
            "cpus": worker.placement.cpus,
            "rule": worker.placement.rule,
            "binding": " ".join(worker.binding),
            "port": worker.port,
        }
        for worker in plan.workers
        if worker.placement
    ]


def _hardware(hardware: Hardware) -> Data:
    gpus = sorted(hardware.gpus, key=lambda gpu: gpu.index)
    order = [gpu.index for gpu in gpus]
    return {
        "gpus": [
            {
                "index": gpu.index,
                "name": gpu.name,
                "uuid": gpu.uuid,
                "bus_id": gpu.bus_id,
                "numa_node": gpu.numa_node,
                "memory_mib": gpu.memory_mib,
                "compute_capability": gpu.compute_capability,
            }
            for gpu in gpus
        ],
        "nodes": [
            {"index": node.index, "cpus": spell_number_list(node.cpus), "distances": dict(node.distances)}
            for node in hardware.nodes
        ],
        "sockets": sockets(hardware),
        "links": [[hardware.topo.links.get((a, b)) for b in order] for a in order] if hardware.topo else None,
        "p2p": [[hardware.p2p.statuses.get((a, b)) for b in order] for a in order] if hardware.p2p else None,
    }


def _versions(plan: Plan, proof: Mapping[str, Any] | None) -> dict[str, str]:
    manifest, settings = plan.release.manifest, plan.settings
    found: dict[str, str | None] = {
        "release": manifest.name,
        "release id": plan.release.id,
        "SGLang": manifest.sglang,
        "torch": manifest.torch,
        "CUDA": manifest.cuda,
        **manifest.packages,
        "UCX": manifest.ucx,
        "router": f"{plan.release.router} {manifest.routers[plan.release.router]}",
        "patches": ", ".join(manifest.patches) or None,
        "Python": plan.release.python,
        "driver": plan.hardware.driver or (plan.hardware.gpus[0].driver if plan.hardware.gpus else None),
        "system": plan.system.os_name,
        "model": plan.profile.name,
        "model revision": plan.model_revision if plan.profile.source.hub else None,
        "context length": f"{plan.context_length} tokens",
        "transfer backend": settings.transfer_backend,
        "proof's driver": ((proof or {}).get("depends") or {}).get("driver"),
    }
    return {name: str(value) for name, value in found.items() if value}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
