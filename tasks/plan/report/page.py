"""The report's data as the page shows it: words, figures in their units, shades. The template only sets it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.plan.host.matrices import spell_number_list
from tasks.plan.proof.judgement import FRESH, NONE
from tasks.plan.proof.probe import PROMPT
from tasks.plan.report.data import LEVELS, Data
from tasks.plan.report.drawing import Drawing, draw
from tasks.plan.service import caches

SHADES = 6  # classes h0 (faint) to h5 (strong)
SHADE_OF_LINK = {"PIX": 4, "PXB": 4, "PHB": 3, "NODE": 2, "SYS": 1}  # nearer is stronger; NVLink strongest
MARKS = {"error": "✕", "incomplete": "?", "warning": "!", "silenced": "~", "healthy": "✓", "unproven": "?"}
NO_FIGURE = "n/a"
LAYOUTS = {"pd": "prefill/decode", "single": "single-server", "data_parallel": "data-parallel"}
OUTCOMES = {
    "right": "right values",
    "hang": "hangs",
    "wrong": "wrong values",
    "broken": "broken set-up",
    "single": "one GPU, nothing to reduce",
}


@dataclass(frozen=True)
class Cell:
    text: str
    shade: str = ""  # class of its background
    title: str = ""


@dataclass(frozen=True)
class HeatMap:
    title: str
    note: str
    columns: list[str]
    rows: list[tuple[str, list[Cell]]]


@dataclass(frozen=True)
class Figure:
    """One of the figures below the verdict."""

    value: str
    unit: str
    label: str


def view(data: Data) -> dict[str, Any]:
    """What templates/report.html.j2 shows of tasks.plan.report.data.build's data."""
    findings = [{**finding, "mark": MARKS[finding["level"]]} for finding in data["findings"]]
    parts = (data["proof"] or {}).get("parts") or {}
    return {
        "host": data["host"],
        "written": data["written"],
        "title": LAYOUTS.get(data["layout"], "host"),
        "verdict": {**data["verdict"], "mark": MARKS[data["verdict"]["level"]]},
        "figures": _figures(data),
        "to_fix": [finding for finding in findings if finding["level"] not in ("healthy", "silenced")],
        "silenced": [finding for finding in findings if finding["level"] == "silenced"],
        "healthy": [finding for finding in findings if finding["level"] == "healthy"],
        "counts": ", ".join(
            f"{count} {level}" for level in LEVELS if (count := sum(f["level"] == level for f in data["findings"]))
        ),
        "proof": _proof(data),
        "parts": [_part(name, part) for name, part in parts.items()],
        "servers": [_server(server) for server in data["placement"]],
        "cpu": data["device"] == "cpu",
        "cards": _cards(data["hardware"]) if data["hardware"] else "",
        "drawing": _drawing(data) if data["hardware"] else None,
        "maps": _maps(data) if data["hardware"] else [],
        "pairs": [_pair(pair) for pair in data["kv_path"]],
        "lanes": _lanes(data["kv_path"]),
        "seconds": [_seconds(pair) for pair in data["kv_path"] if any(pair["seconds"].values())],
        "prompt": f"{PROMPT:,}",
        "kv_pages": _kv_pages(data["kv_pages"]) if data["kv_pages"] else None,
        "backend": _backend(parts.get("kv_path") or {}),
        "groups": [_group(group) for group in (parts.get("all_reduce") or {}).get("groups") or []],
        "model": _model(data["model"]) if data["model"] else None,
        "versions": data["versions"],
        "run": _run(data["run"]) if data["run"] else None,
    }


def _run(run: Data) -> Data:
    """How the run went, its phases with their seconds."""
    seconds = run["seconds"]
    at = f" at {run['at']}" if run["at"] and run["reasons"] else ""
    return {
        "ending": f"The run {run['ending']}{at}",
        "reasons": run["reasons"],
        "changed": f"{len(run['changed'])} of {run['operations']} things",
        "restarts": [f"{server}: {why}" for server, why in run["restarts"].items()],
        "kernels": [] if run.get("compiled") is None else [caches.told(run["compiled"])],
        "seconds": [(phase, figure(took)) for phase, took in seconds.items()],
        "total": figure(sum(seconds.values())),
    }


def _model(model: Data) -> Data:
    """GB with one digit; how many requests of the whole context the KV cache holds at once."""
    context = model["context_length"]
    rows = [
        {
            "server": row["server"],
            "card": figure(row["card_gb"]),
            "fraction": f"{row['fraction']:.2f}",
            "weights": figure(row["weights_gb"]),
            "kv": figure(row["kv_gb"]),
            "tokens": f"{row['kv_tokens']:,}",
            "requests": figure(row["kv_tokens"] / context),
            "left": figure(row["left_gb"]),
        }
        for row in model["memory"]
    ]
    return {**model, "context": f"{context:,}", "derived": ", ".join(model["derived"]), "memory": rows}


def _kv_pages(pages: Data) -> Data:
    told = ", ".join(f"{one['count']} x {size(one['bytes'])} ({one['name']})" for one in pages["buffers"])
    return {"tokens": pages["tokens"], "buffers": told}


def size(count: int | None) -> str:
    """9216 as "9 KiB", 268435456 as "256 MiB"."""
    if count is None:
        return NO_FIGURE
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
        value /= 1024
    raise AssertionError


def figure(value: float | None, digits: int = 1) -> str:
    """With so many digits behind the point, fewer where it is large, more where it is small."""
    if value is None:
        return NO_FIGURE
    if value and abs(value) < 10**-digits:
        return f"{value:.1e}" if abs(value) < 1e-4 else f"{value:.{digits + 2}f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.{digits}f}"


def _figures(data: Data) -> list[Figure]:
    measured = [pair for pair in data["kv_path"] if pair["gbps"] is not None]
    found = []
    if measured:
        slowest = min(measured, key=lambda pair: pair["gbps"])
        together = min((p["together"][-1]["gbps"] for p in measured if _last(p["together"])), default=None)
        small = max((p["alone"][0]["us_per_descriptor"] or 0 for p in measured), default=0)
        found.append(Figure(figure(slowest["gbps"]), "GB/s", f"slowest KV pair, {size(_largest(slowest))} each"))
        if slowest["share"] is not None:
            found.append(Figure(f"{slowest['share']:.2f}", "of a plain copy", "that pair against a peer copy"))
        if together is not None:
            found.append(Figure(figure(together), "GB/s", "slowest pair, all at once"))
        if small:
            smallest = size(measured[0]["alone"][0]["descriptor_bytes"])
            found.append(Figure(figure(small), "µs", f"to post a descriptor of {smallest}"))
        seconds = [pair["seconds"]["together"] or pair["seconds"]["alone"] for pair in measured]
        if all(seconds):
            merged = max(one["merged"] for one in seconds)
            found.append(Figure(figure(merged * 1e3, 2), "ms", f"of transfer per {PROMPT:,} tokens, pages merged"))
    if data["age"]:
        found.append(Figure(data["age"]["words"], "", "since the measurement"))
    return found


def _last(rows: Sequence[Mapping[str, Any]]) -> bool:
    return bool(rows) and rows[-1].get("gbps") is not None


def _largest(pair: Data) -> int | None:
    return pair["alone"][-1]["descriptor_bytes"] if pair["alone"] else None


def _proof(data: Data) -> dict[str, str]:
    age = data["age"]
    if data["state"] == NONE or age is None:
        return {"state": "Not measured yet", "age": "", "depends": ""}
    state = "Fresh" if data["state"] == FRESH else data["state"][:1].upper() + data["state"][1:]
    took = f", took {figure(age['took'])} s" if age["took"] is not None else ""
    boot = f", at boot {str(age['boot'])[:8]}" if age["boot"] else ""
    depends = data["proof"].get("depends") or {}
    on = "host memory" if data["proof"].get("device") == "cpu" else "GPUs"
    return {
        "state": state,
        "age": f"Measured {age['words']} ({age['started']}{took}{boot}) over {on}.",
        "depends": ", ".join(
            f"{name} {str(depends[name])[:16]}" for name in ("driver", "release", "settings") if depends.get(name)
        ),
    }


def _part(name: str, part: Mapping[str, Any]) -> dict[str, str]:
    ended = f"exit {part['exit']}" if part.get("exit") is not None else ""
    took = f"{figure(part['seconds'])} s" if part.get("seconds") is not None else ""
    return {
        "name": {"peer": "peer copies", "all_reduce": "all_reduce", "kv_path": "KV path"}.get(name, name),
        "status": str(part.get("status")),
        "detail": ", ".join(word for word in (ended, took) if word),
        "reason": str(part.get("reason") or ""),
    }


def _server(server: Data) -> dict[str, Any]:
    return {
        **server,
        "gpus": spell_number_list(frozenset(server["gpus"])),
        "nodes": spell_number_list(frozenset(server["numa_nodes"])) or "unknown",
        "cpus": server["cpus"] or "not bound",
        "binding": server["binding"] or "none",
    }


def _cards(hardware: Data) -> str:
    """All of the host's GPUs in a few words."""
    kinds: dict[str, int] = {}
    for gpu in hardware["gpus"]:
        memory = f", {gpu['memory_mib'] / 1024:.0f} GiB" if gpu["memory_mib"] else ""
        kind = f"{gpu['name']}{memory}, compute capability {gpu['compute_capability']}"
        kinds[kind] = kinds.get(kind, 0) + 1
    return "; ".join(f"{count} x {kind}" for kind, count in kinds.items())


def _drawing(data: Data) -> Drawing:
    speeds = {(pair["from"], pair["to"]): pair["gbps"] for pair in data["kv_path"]}
    return draw(data["hardware"], data["placement"], [(a, b) for a, b in data["writes"]], speeds)


def _maps(data: Data) -> list[HeatMap]:
    hardware = data["hardware"]
    order = [gpu["index"] for gpu in hardware["gpus"]]
    found = []
    if hardware["links"]:
        found.append(
            _map("Links", "nvidia-smi topo -m; nearer is stronger", order, lambda i, j: _link(hardware["links"][i][j]))
        )
    if hardware["p2p"]:
        note = "nvidia-smi topo -p2p rw: what the driver claims, which proves nothing"
        found.append(_map("Peer access", note, order, lambda i, j: _status(hardware["p2p"][i][j])))
    peer = {(p["from"], p["to"]): p for p in _of(data["proof"], "peer", "pairs")}
    if peer:
        most = max((p["gbps"] or 0 for p in peer.values()), default=0)
        note = "GB/s from row to column, one pair at a time; ≠ wrong bytes, h through host memory"
        found.append(_map("Peer copies, measured", note, order, lambda i, j: _copy(peer.get((order[i], order[j])), most, i == j)))  # fmt: skip # noqa: E501
    return found


def _map(title: str, note: str, order: Sequence[int], cell: Callable[[int, int], Cell]) -> HeatMap:
    names = [str(index) for index in order]
    return HeatMap(title, note, names, [(n, [cell(i, j) for j in range(len(order))]) for i, n in enumerate(names)])


def _link(link: str | None) -> Cell:
    if link == "X":
        return Cell("·", "self")
    if link is None:
        return Cell("?")
    return Cell(link, f"h{SHADES - 1 if link.startswith('NV') else SHADE_OF_LINK.get(link, 0)}")


def _status(status: str | None) -> Cell:
    if status == "X":
        return Cell("·", "self")
    return Cell(status or "?", "h3" if status == "OK" else "bad")


def _copy(pair: Mapping[str, Any] | None, most: float, itself: bool) -> Cell:
    if itself:
        return Cell("·", "self")
    if pair is None or pair.get("gbps") is None:
        return Cell(NO_FIGURE)
    wrong, host = pair.get("same_bytes") is False, pair.get("peer_access") is False
    shade = "bad" if wrong else f"h{round((SHADES - 1) * pair['gbps'] / most) if most else 0}"
    marks = "≠" * wrong + " h" * host
    title = f"GPU {pair['from']} to GPU {pair['to']}, {size(pair.get('bytes'))}"
    return Cell(f"{figure(pair['gbps'])}{marks}", shade, title)


def _of(proof: Mapping[str, Any] | None, part: str, name: str) -> list[Mapping[str, Any]]:
    return (((proof or {}).get("parts") or {}).get(part) or {}).get(name) or []


def _pair(pair: Data) -> dict[str, Any]:
    by_way: list[dict[int, Data]] = [
        {row["descriptor_bytes"]: row for row in pair[way]} for way in ("alone", "together")
    ]
    rows = []
    for bytes_ in sorted(by_way[0].keys() | by_way[1].keys()):
        one, all_ = by_way[0].get(bytes_, {}), by_way[1].get(bytes_, {})
        plain, speed = pair["plain_gbps"], one.get("gbps")
        share = speed / plain if plain and speed is not None else None
        rows.append(
            {
                "size": size(bytes_),
                "alone": figure(speed),
                "alone_us": figure(one.get("us_per_descriptor")),
                "together": figure(all_.get("gbps")),
                "together_us": figure(all_.get("us_per_descriptor")),
                "share": f"{share:.2f}" if share is not None else NO_FIGURE,
                "bar": round(min(share or 0, 1) * 100),
                "wrong": one.get("same_bytes") is False or all_.get("same_bytes") is False,
            }
        )
    lane = {True: "cuda_ipc", False: "no cuda_ipc"}.get(pair["cuda_ipc"], "host memory")
    return {
        "name": _pair_name(pair),
        "lane": lane,
        "plain": figure(pair["plain_gbps"]),
        "rows": rows,
    }


def _pair_name(pair: Data) -> str:
    ends = [f"{pair['from']}", f"{pair['to']}"] if None not in (pair["from"], pair["to"]) else ["", ""]
    return f"{pair['prefill']} {ends[0]}".strip() + " → " + f"{pair['decode']} {ends[1]}".strip()


def _lanes(pairs: Sequence[Data]) -> list[tuple[str, str]]:
    """(names of pairs, what UCX said about their lane): each line once."""
    by_line: dict[str, list[str]] = {}
    for pair in pairs:
        if pair["lane"]:
            by_line.setdefault(pair["lane"], []).append(_pair_name(pair))
    return [("every pair" if len(names) == len(pairs) else ", ".join(names), line) for line, names in by_line.items()]


def _seconds(pair: Data) -> dict[str, str]:
    def shown(way: str, kind: str) -> str:
        found = pair["seconds"][way]
        return f"{found[kind]:.5f}" if found else NO_FIGURE

    return {
        "name": _pair_name(pair),
        "alone_merged": shown("alone", "merged"),
        "alone_split": shown("alone", "split"),
        "together_merged": shown("together", "merged"),
        "together_split": shown("together", "split"),
    }


def _backend(part: Mapping[str, Any]) -> str:
    if not part.get("backend"):
        return ""
    roles = [
        f"{role} {', '.join(f'{name} {value}' for name, value in given.items())}"
        for role, given in (part.get("parameters") or {}).items()
        if given
    ]
    return f"NIXL backend {part['backend']}" + (f"; {'; '.join(roles)}" if roles else "")


def _group(group: Mapping[str, Any]) -> dict[str, str]:
    control = group.get("control") or {}
    outcome = str(group.get("outcome"))
    return {
        "name": str(group.get("instance")),
        "gpus": spell_number_list(frozenset(group.get("gpus") or [])),
        "outcome": OUTCOMES.get(outcome, outcome),
        "good": "yes" if outcome in ("right", "single") else "",
        "bus": figure(group.get("bus_gbps")),
        "small": figure(group.get("us_small")),
        "control": OUTCOMES.get(str(control.get("outcome")), str(control.get("outcome"))) if control else "not needed",
        "reason": str(group.get("reason") or ""),
    }
