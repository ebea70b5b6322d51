"""Xids: the faults of GPUs and of their users that the driver wrote into the kernel log."""

from __future__ import annotations

import re

from tasks.plan.checks.gpus import by_use
from tasks.plan.checks.registry import Found, Unreadable, Verdict, check, healthy, warning

# With MIG the instance stands beside the card: "(PCI:0000:01:00 GPU-I:05)"; old drivers leave out "PCI:".
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)[^)]*\): ([0-9]+)\b(.*)")
LINK_XIDS = range(144, 151)  # NVLink events of Blackwell: each line says itself whether it is fatal


@check(
    "gpu/xid/none",
    "plan",
    judges="no Xid of the list in the kernel log of this boot, and no link event (144-150) that says Fatal; one of "
    "another number is a warning",
    source="Azure HPC health checks' list; 8, 154 and 175 from reports; NVIDIA's Xid catalogue: 95, fatal link events",
    settings=("failing_xids",),
    ask="journalctl -k -b | grep Xid",
    of_gpu=True,
)
def xid(found: Found) -> Verdict:
    first, *lines = found.rows("kernel")
    size = re.match(r"([0-9]+) lines", first)
    if not size or int(size[1]) == 0:
        raise Unreadable("no log of this boot", first)
    of_bus = {gpu.bus_id.rpartition(".")[0]: gpu.index for gpu in found.gpus}
    events, fatal = [], set()
    for line in lines:
        event = XID.search(line)
        if event:
            events.append((of_bus.get(event[1].lower().partition(".")[0][-10:], -1), int(event[2]), line.strip()))
            if int(event[2]) in LINK_XIDS and re.search(r"\bFatal\b", event[3]):
                fatal.add(line.strip())
        elif "NVRM: Xid" in line:
            raise Unreadable("an Xid without a number", line.strip())
    failing = [event for event in events if event[1] in found.settings.failing_xids or event[2] in fatal]
    if failing:
        numbers = ", ".join(map(str, sorted({number for _, number, _ in failing})))
        return by_use(
            found,
            [index for index, _, _ in failing],
            f"{len(failing)} Xid events of a failing GPU in this boot ({numbers})",
            "reboot; where they come back, NVIDIA's Xid catalogue says what to replace",
            [line for *_, line in failing[-3:]],
        )
    if events:
        numbers = ", ".join(map(str, sorted({number for _, number, _ in events})))
        return warning(
            f"{len(events)} Xid events in this boot ({numbers})",
            "look them up in NVIDIA's Xid catalogue: most of these are faults of an application",
            *(line for *_, line in events[-3:]),
        )
    return healthy(f"no Xid in {size[1]} lines of the kernel log", first)
