"""Whether systemd keeps others away from what a unit listens on."""

from __future__ import annotations

from tasks.plan.checks.registry import Found, Unreadable, Verdict, check, error, healthy, warning
from tasks.plan.service.listening import ENFORCED, NOT_ENFORCED


@check(
    "host/filter/enforced",
    "hardware",
    judges="systemd enforces address filters of units (a packet to loopback is tried, from a unit that may send none); "
    "where it does not, a warning; an error where servers of other hosts are reached",
    source="systemd.resource-control(5), IPAddressDeny: needs cgroup v2 and BPF, and is ignored without a word",
    ask="systemd-run --wait --pipe --collect -p IPAddressDeny=any bash -c 'echo >/dev/udp/127.0.0.1/9'",
    required=False,
)
def enforced(found: Found) -> Verdict:
    said = found.text("enforced").strip()
    if said == ENFORCED:
        return healthy("a unit that may send nothing cannot send")
    if said == NOT_ENFORCED and not found.settings.place.alone:
        return error(
            "not enforced: systemd ignores IPAddressDeny here, and servers of several hosts take requests without "
            "a key from whoever reaches their address",
            "boot the host with cgroup v2, in a container allow systemd the bpf system call and CAP_BPF; or keep "
            "others away with a packet filter of your own, and silence this check with that reason",
        )
    if said == NOT_ENFORCED:
        return warning(
            "not enforced: systemd ignores IPAddressDeny here, so who may reach servers is up to their sockets alone",
            "boot the host with cgroup v2; in a container allow systemd the bpf system call and CAP_BPF",
        )
    raise Unreadable("neither refused nor passed", said)
