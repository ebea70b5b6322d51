"""What was measured on a host, judged: is it fresh, is it good enough to start servers, what must be mended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tasks.plan.files import WantedFile
from tasks.plan.findings import Finding, Level, silence
from tasks.plan.model.profile import ModelProfile
from tasks.plan.plan import Plan
from tasks.plan.proof import probe
from tasks.plan.proof.result import Result
from tasks.plan.release.versions import at_least
from tasks.plan.service.instances import kv_pairs

STATE = "proof/state"  # id of the finding that says whether a proof is fresh
FRESH, NONE = "fresh", "none"  # states of a proof; anything else says why it is stale
CUDA_IPC_UCX = "1.23"  # the first UCX whose estimate of cuda_ipc on sm_120 is not below the host's (ucx#11865)
DEPENDS = {
    "driver": "driver", "release": "release", "gpus": "GPUs", "boot": "boot", "settings": "settings of the servers",
}  # fmt: skip
IDS = (
    STATE,
    "proof/peer/run",
    "proof/peer/bytes",
    "proof/peer/speed",
    "proof/all-reduce/run",
    "proof/all-reduce/sums",
    "proof/kv/run",
    "proof/kv/bytes",
    "proof/kv/lane",
    "proof/kv/speed",
    "proof/kv/share",
    "proof/kv/together",
)


@dataclass(frozen=True)
class Proof:
    """The last measurement of a host, and whether it still speaks of what is planned now."""

    data: Mapping[str, Any] | None  # as pd-probe writes it; None: none that can be read
    stale: str  # why it must be measured again, "" where it is fresh
    findings: tuple[Finding, ...]

    @property
    def state(self) -> str:
        """For the report: FRESH, NONE, or why it is stale."""
        return NONE if self.data is None else f"stale: {self.stale}" if self.stale else FRESH

    @property
    def holds(self) -> bool:
        """Whether servers may start on it."""
        return not self.stale and not any(finding.stops for finding in self.findings)


def config_file(plan: Plan) -> WantedFile:
    content = json.dumps(probe.configuration(plan), indent=1) + "\n"
    return WantedFile(plan.paths.probe, content.encode(), "640", "root", plan.group, gist="what pd-probe measures")


def told_file(plan: Plan, found: Proof) -> WantedFile:
    """What a run leaves that has warned of a stale proof."""
    return WantedFile(plan.paths.told, f"{found.stale}\n".encode(), "640", "root", plan.group)


def read(plan: Plan, text: str | None, boot: str, serving: bool) -> Proof:
    """The kept measurement, compared with the plan and judged. text: None where the host keeps none.

    serving: whether servers of ours run, which hold the GPUs: then nothing is measured unless it is asked for.
    """
    data = _data(text)
    stale = _stale(data, plan, boot) if data else "nothing was measured yet" if text is None else "it cannot be read"
    judged = judge(data, plan) if data and not stale else ()
    return Proof(data, stale, silence((_state(stale, serving), *judged), plan.settings.silenced_checks))


def judge(data: Mapping[str, Any], plan: Plan) -> tuple[Finding, ...]:
    """Findings of every part; the gates are settings."""
    parts = data["parts"]
    on_gpu = data["device"] == "cuda"
    return (
        *_peer(parts.get("peer"), plan, on_gpu),
        *_all_reduce(parts.get("all_reduce")),
        *(_kv_path(parts.get("kv_path"), plan, on_gpu) if kv_pairs(plan.workers) else _no_kv_path(plan)),
    )


def transfer_seconds(
    rows: Sequence[Mapping[str, Any]], profile: ModelProfile, parallel: int
) -> dict[str, float] | None:
    """Seconds that the KV of 1,000 prompt tokens takes from one rank, from the measured time of a descriptor.

    split: a descriptor for each page and buffer. merged: one for each buffer, as SGLang does where pages lie side by
    side. None where a size was not measured.
    """
    us = {row["descriptor_bytes"]: row["us_per_descriptor"] for row in rows if row.get("us_per_descriptor")}
    split = merged = 0.0
    for buffer in profile.kv_buffers:
        size, count = probe.page_bytes(buffer, profile, parallel), probe.pages(profile)
        if size not in us or size * count not in us:
            return None
        split += buffer.count * count * us[size]
        merged += buffer.count * us[size * count]
    return {"split": split / 1e6, "merged": merged / 1e6}


# ---- freshness


def _data(text: str | None) -> Mapping[str, Any] | None:
    """None for what pd-probe did not write: the service user owns the file."""
    try:
        Result.model_validate_json(text or "")
        return cast(Mapping[str, Any], json.loads(text or ""))
    except ValueError:
        return None


def _stale(data: Mapping[str, Any], plan: Plan, boot: str) -> str:
    """What changed since, "" for nothing."""
    used = {gpu for worker in plan.workers for gpu in worker.gpus}
    now = {
        "driver": plan.hardware.driver,
        "release": plan.release.id,
        "gpus": sorted(gpu.uuid for gpu in plan.hardware.gpus if gpu.index in used),
        "boot": boot,
        "settings": config_file(plan).sha256,
    }
    changed = [name for name in now if data["depends"].get(name) != now[name]]
    if changed and changed != ["settings"]:  # the settings hold release, driver and GPUs too
        changed = [name for name in changed if name != "settings"]
    told = [
        f"{DEPENDS[name]} {data['depends'].get(name)} is now {now[name]}"
        if name in ("driver", "release")
        else f"other {DEPENDS[name]}"
        for name in changed
    ]
    return " and ".join(told)


def _state(stale: str, serving: bool) -> Finding:
    if not stale:
        return Finding(STATE, Level.HEALTHY, "measured since driver, release, GPUs, boot and settings changed last")
    if serving:
        return Finding(
            STATE, Level.WARNING, f"the proof of the KV path is stale ({stale}), and servers hold the GPUs",
            advice="`--data reprove=True` drains them, measures and starts them again",
        )  # fmt: skip
    return Finding(STATE, Level.INCOMPLETE, f"to be measured before servers start: {stale}", required=False)


# ---- the parts


def _peer(part: Mapping[str, Any] | None, plan: Plan, on_gpu: bool) -> tuple[Finding, ...]:
    run = _run("proof/peer/run", "peer copies", part)
    pairs = part.get("pairs", []) if part else []
    if not pairs:
        return (run,)
    wrong = [pair for pair in pairs if not pair["same_bytes"]]
    bytes_ = (
        Finding(
            "proof/peer/bytes", Level.ERROR, f"copies bring wrong bytes: {_arrows(wrong)}",
            tuple(map(_peer_line, wrong)),
            "do not serve on this host: IOMMU or ACS redirects peer traffic (iommu=pt or off, ACS off in the BIOS), "
            "or the driver's P2P is broken for these cards",
        )
        if wrong
        else Finding("proof/peer/bytes", Level.HEALTHY, f"{len(pairs)} copies, every byte right")
    )  # fmt: skip
    if not on_gpu:
        return (run, bytes_)
    floor = plan.settings.peer_minimum_gbps
    slow = [pair for pair in pairs if pair["gbps"] < floor]
    least = min(pair["gbps"] for pair in pairs)
    speed = (
        Finding(
            "proof/peer/speed", Level.WARNING, f"copies below {floor:g} GB/s: {_arrows(slow)}, least {least:g}",
            tuple(map(_peer_line, slow)),
            "look at PCIe width, at a link that trained down, and at what else moves data on that socket",
        )
        if slow
        else Finding("proof/peer/speed", Level.HEALTHY, f"copies at {least:g} GB/s or more")
    )  # fmt: skip
    return (run, bytes_, speed)


def _all_reduce(part: Mapping[str, Any] | None) -> tuple[Finding, ...]:
    groups = part.get("groups", []) if part else []
    if part and part["status"] == "failed" and groups:
        run = Finding("proof/all-reduce/run", Level.HEALTHY, "all_reduce ran for every group")
    else:
        run = _run("proof/all-reduce/run", "all_reduce", part)
    bad = [group for group in groups if group["outcome"] not in ("right", "single")]
    if not groups:
        return (run,)
    if not bad:
        right = [f"{g['instance']} {g['bus_gbps']:g} GB/s" for g in groups if g["outcome"] == "right"]
        told = ", ".join(right) or "one GPU a server: nothing to reduce"
        return (run, Finding("proof/all-reduce/sums", Level.HEALTHY, f"sums are right: {told}"))
    return (
        run,
        Finding(
            "proof/all-reduce/sums", Level.ERROR, "; ".join(f"{g['instance']}: {_OUTCOMES[g['outcome']]}" for g in bad),
            tuple(f"{g['instance']}, GPU {g['gpus']}: {g['reason']}" for g in bad),
            _all_reduce_advice(bad[0]),
        ),
    )  # fmt: skip


_OUTCOMES = {
    "hang": "all_reduce hangs",
    "wrong": "all_reduce gives wrong sums",
    "broken": "all_reduce cannot run",
}


def _all_reduce_advice(group: Mapping[str, Any]) -> str:
    control = (group.get("control") or {}).get("outcome")
    if control == "right":
        return (
            "it is right with NCCL_P2P_DISABLE=1: peer traffic between these GPUs is broken although the driver calls "
            "it fine; switch ACS and IOMMU off or to pt, or serve without P2P "
            "(NCCL_P2P_DISABLE=1 in `worker_environment`)"
        )
    if control == "wrong":
        return "wrong with and without P2P: take the GPUs out of service, and run the vendor's diagnostics"
    return "it fails without P2P too: the set-up is broken, not the fabric; the evidence holds the last words"


def _no_kv_path(plan: Plan) -> tuple[Finding, ...]:
    if plan.settings.place.alone:
        return (Finding("proof/kv/run", Level.HEALTHY, "whole servers: no KV cache moves between them"),)
    told = "prefill and decode are on different hosts: the KV path between them is not measured"
    return (Finding("proof/kv/run", Level.HEALTHY, told),)


def _kv_path(part: Mapping[str, Any] | None, plan: Plan, on_gpu: bool) -> tuple[Finding, ...]:
    if part and part["status"] == "skipped":
        return (Finding("proof/kv/run", Level.WARNING, f"the KV path was not measured: {part['reason']}"),)
    run = _run("proof/kv/run", "KV path", part)
    pairs = part.get("pairs", []) if part else []
    if not pairs:
        return (run,)
    wrong = [pair for pair in pairs if not all(shape["same_bytes"] for shape in (*pair["alone"], *pair["together"]))]
    found = [
        run,
        Finding(
            "proof/kv/bytes", Level.ERROR, f"KV arrives with wrong bytes: {_arrows(wrong)}",
            advice="do not serve on this host: answers would be wrong while every health check is green",
        )
        if wrong
        else Finding(
            "proof/kv/bytes", Level.HEALTHY,
            f"every byte right, {len(pairs)} {'pair' if len(pairs) == 1 else 'pairs'}, "
            f"{min(_gbps(pair['alone']) for pair in pairs):.3g} GB/s or more",
        ),
    ]  # fmt: skip
    if not on_gpu:
        return tuple(found)
    return (*found, _lane(pairs, plan), *_kv_speed(pairs, plan))


def _lane(pairs: list[Mapping[str, Any]], plan: Plan) -> Finding:
    without = [pair for pair in pairs if not pair["cuda_ipc"]]
    if not without:
        return Finding("proof/kv/lane", Level.HEALTHY, "cuda_ipc between all pairs", (pairs[0]["lane"],))
    return Finding(
        "proof/kv/lane",
        Level.ERROR,
        f"KV would move without cuda_ipc, through the host: {_arrows(without)}",
        tuple(f"{_arrow(pair)}: {pair['lane'] or 'UCX printed no lane'}" for pair in without),
        "causes, the likeliest first: " + "; ".join(_lane_causes(plan)),
    )


def _lane_causes(plan: Plan) -> list[str]:
    """What makes UCX leave cuda_ipc out: first what this host's own settings say."""
    set_to = {variable.name: variable.value for worker in plan.workers for variable in worker.environment}
    causes = []
    transports = set_to.get("UCX_TLS")
    if transports is not None:
        causes.append(f"UCX_TLS={transports} in the servers' environment: take it out")
    if "expandable_segments:true" in set_to.get("PYTORCH_CUDA_ALLOC_CONF", "").lower():
        causes.append("expandable_segments in PYTORCH_CUDA_ALLOC_CONF: take it out")
    if not at_least(plan.release.manifest.ucx, CUDA_IPC_UCX):
        causes.append(f"UCX {plan.release.manifest.ucx} underrates cuda_ipc on sm_120, {CUDA_IPC_UCX} does not")
    return [
        *causes,
        "the GPUs cannot reach each other's memory (peer copies above, `nvidia-smi topo -p2p rw`)",
        "NIXL's UCX was built without CUDA, or cannot load it (its log names libuct_cuda)",
        "the servers do not share a PID and IPC namespace (containers)",
    ]


def _kv_speed(pairs: list[Mapping[str, Any]], plan: Plan) -> tuple[Finding, ...]:
    settings = plan.settings
    alone = {_arrow(pair): _gbps(pair["alone"]) for pair in pairs}
    together = {_arrow(pair): _gbps(pair["together"]) for pair in pairs}
    plain = {_arrow(pair): pair["plain_gbps"] for pair in pairs}
    share = {name: alone[name] / plain[name] for name in alone if plain[name]}
    evidence = tuple(
        f"{_arrow(pair)}: {_gbps(pair['alone']):g} GB/s alone{_spread(pair['alone'])}, "
        f"{_gbps(pair['together']):g} with all others{_spread(pair['together'])}, plain copy "
        f"{pair['plain_gbps'] or 'not measured'}"
        for pair in pairs
    )

    def judged(
        id: str, what: str, values: dict[str, float], floor: float, unit: str, advice: str, usual: float = 0.0
    ) -> Finding:
        low = {name: value for name, value in values.items() if value < floor}
        if not values:
            return Finding(id, Level.INCOMPLETE, f"{what}: no plain copy to compare with", evidence, required=False)
        least = min(values.values())
        if not low and least < usual:
            unusual = ", ".join(f"{name} {value:.3g}" for name, value in values.items() if value < usual)
            line = f"{what} below {usual:g}{unit}, which good machines reach: {unusual}"
            return Finding(id, Level.WARNING, line, evidence, f"servers start; {advice}")
        if not low:
            return Finding(id, Level.HEALTHY, f"{what} {least:.3g}{unit} or more", evidence)
        told = ", ".join(f"{name} {value:.3g}" for name, value in low.items())
        return Finding(id, Level.ERROR, f"{what} below {floor:g}{unit}: {told}", evidence, advice)

    return (
        judged(
            "proof/kv/speed", "KV path", alone, settings.kv_minimum_gbps, " GB/s",
            "the transfer library stages through the host, or the link is bad: see proof/kv/lane and proof/peer/speed",
        ),
        judged(
            "proof/kv/share", "share of the plain copy", share, settings.kv_minimum_share, "",
            "the link is good, the transfer library does not use it: look at its lanes and parameters",
            settings.kv_usual_share,
        ),
        judged(
            "proof/kv/together", "KV path, all pairs at once,", together, settings.kv_together_minimum_gbps, " GB/s",
            "pairs are fast one by one and slow together: writes from one PCIe switch to several roots collapse; "
            "pair GPUs below one root (prefill_gpus, decode_gpus)",
        ),
    )  # fmt: skip


def _run(id: str, what: str, part: Mapping[str, Any] | None) -> Finding:
    if part is None:
        return Finding(id, Level.INCOMPLETE, f"{what}: not part of the last measurement", advice="measure again")
    if part["status"] == "done":
        return Finding(id, Level.HEALTHY, f"{what}: measured in {part['seconds']:.0f} s")
    if part["status"] == "skipped":
        return Finding(id, Level.HEALTHY, f"{what}: {part['reason']}")
    if part.get("pairs"):
        return Finding(id, Level.HEALTHY, f"{what}: measured, with faults")  # which have findings of their own
    level = Level.INCOMPLETE if part["status"] == "timeout" else Level.ERROR
    return Finding(
        id, level, f"{what}: {part['status']}, exit {part['exit']}", (part["reason"],), _run_advice(part["reason"])
    )


def _run_advice(reason: str) -> str:
    if "hidden GPU" in reason:
        return "a GPU is hidden from the server: take CUDA_VISIBLE_DEVICES out of its environment"
    if "other GPU" in reason:
        return "the server would open another GPU than planned: take CUDA_VISIBLE_DEVICES out of its environment"
    if "out of memory" in reason.lower():
        return "something else holds the GPU's memory: `nvidia-smi` shows its process"
    return "the evidence holds the last words; `pd-probe --config ...` on the host repeats it"


def _largest(shapes: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Where the link decides and not the posting."""
    return max(shapes, key=lambda shape: int(shape["descriptor_bytes"]))


def _gbps(shapes: list[Mapping[str, Any]]) -> float:
    """The best of what one proof measured: noise only ever slows a transfer down."""
    return float(_largest(shapes)["gbps"])


def _spread(shapes: list[Mapping[str, Any]]) -> str:
    """How far the measurements of one proof differ; "" where there is one."""
    rounds = _largest(shapes).get("rounds") or []
    return f" (the best of {len(rounds)}, from {min(rounds):g})" if len(rounds) > 1 else ""


def _peer_line(pair: Mapping[str, Any]) -> str:
    return f"{_arrow(pair)}: {pair['gbps']:g} GB/s, bytes {'right' if pair['same_bytes'] else 'wrong'}"


def _arrow(pair: Mapping[str, Any]) -> str:
    return f"GPU {pair['from']} to {pair['to']}"


def _arrows(pairs: list[Mapping[str, Any]]) -> str:
    return ", ".join(map(_arrow, pairs))
