"""What drifts by itself: the clock, and packages that upgrade unattended."""

from __future__ import annotations

import re

from tasks.plan.checks.registry import Found, Unreadable, Verdict, check, healthy, warning
from tasks.plan.driver.steps import of_driver


@check(
    "host/clock/synchronised",
    "system",
    judges="the clock is synchronised and agrees with the control machine's; otherwise a warning",
    source="systemd's NTPSynchronized; package sources refuse certificates of another day",
    settings=("maximum_clock_skew_s",),
    ask="timedatectl",
    required=False,
)
def clock(found: Found) -> Verdict:
    lines = found.rows("clock")
    if not lines[0].isdecimal():
        raise Unreadable("no seconds in it", lines[0])
    skew, most = int(lines[0]) - found.now, found.settings.maximum_clock_skew_s
    if abs(skew) > most:
        return warning(
            f"the host's clock differs by {skew:+.0f} s from this machine's, {most} s are allowed",
            "set the clock, install chrony or systemd-timesyncd",
            *lines,
        )
    if lines[1:] != ["yes"]:
        said = lines[1] if lines[1:] else ""
        if said != "no":
            raise Unreadable("it does not say whether the clock is synchronised", *lines[1:])
        return warning("the clock is not synchronised", "install chrony or systemd-timesyncd", *lines)
    return healthy(f"synchronised, {abs(skew):.0f} s from this machine's", *lines)


@check(
    "host/upgrades/driver",
    "system",
    judges="unattended upgrades cannot replace the driver's packages; where they can, a warning without manage_driver",
    source="sglang#11395, deepops#1186, gpu-operator#898: library and module differ after an unattended upgrade",
    settings=("manage_driver",),
    ask="apt-config dump | grep -i unattended; apt-mark showhold",
    required=False,
    of_gpu=True,
)
def upgrades(found: Found) -> Verdict:
    lines = found.rows("upgrades")
    on = any(re.match(r'APT::Periodic::Unattended-Upgrade\s+"(?!0")', line) for line in lines)
    left_out = [m[1] for line in lines if (m := re.match(r'Unattended-Upgrade::Package-Blacklist::?\s+"(.+)"', line))]
    packages = [line.split()[1:3] for line in lines if line.startswith("package ") and len(line.split()) >= 3]
    installed = {name: state for state, name in packages if len(state) > 1 and state[1] == "i"}
    if "apt" not in installed:  # asked for as a sign that the list was read
        raise Unreadable("the list of packages holds no apt", lines[0])
    if "unattended-upgrades" not in installed or not on:
        return healthy("no unattended upgrades")
    driver = {name: state for name, state in installed.items() if of_driver(name)}
    open_ = sorted(
        name for name, state in driver.items() if state[0] != "h" and not any(_covers(w, name) for w in left_out)
    )
    if open_ and found.settings.manage_driver:
        return healthy(f"{len(open_)} packages of the driver are left out from this run on")
    if open_:
        return warning(
            f"unattended upgrades may replace {len(open_)} packages of the driver under the running servers",
            f"`apt-mark hold {' '.join(open_[:3])}{' ...' if open_[3:] else ''}`",
            *(line for line in lines if line.startswith("APT::")),
            *open_[:4],
        )
    return healthy(
        f"{len(driver)} packages of the driver are held or left out" if driver else "no package of the driver"
    )


def _covers(pattern: str, name: str) -> bool:
    """As unattended-upgrades reads its list: a regular expression from the name's start."""
    try:
        return re.match(pattern, name) is not None
    except re.error:
        return False
