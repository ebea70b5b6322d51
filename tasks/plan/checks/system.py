"""Privileges, operating system, glibc and Python."""

from __future__ import annotations

from tasks.plan.checks.registry import Found, Verdict, check, error, healthy
from tasks.plan.findings import Refused
from tasks.plan.release import python
from tasks.plan.release.versions import at_least

# Those that were tried (README): Debian on simulated hosts, 13 with the CPU release alone, Ubuntu 24.04 on a machine
# with two H200.
SUPPORTED = {"debian": ("12", "13"), "ubuntu": ("24.04",)}
# Why one that looks close is none of them.
KNOWN = {
    (
        "ubuntu",
        "22.04",
    ): "its python3 is 3.10, our tools need 3.11; its python3.11 is 3.11.0rc1, on which torch._dynamo "
    "fails (NeMo/Speech#8459)",
}
OLDEST_TOOLS = "3.11"  # Python of the tools on the host: tomllib, hashlib.file_digest


@check(
    "host/system/readable",
    "system",
    judges="the host tells its system, CPUs, disks and users; where it does not, there is nothing to plan with",
    source="this playbook's fact System",
    never_silenced=True,
)
def readable(found: Found) -> Verdict:
    return healthy(f"{found.system.os_name}, {len(found.system.cpus_online)} CPUs online")


@check(
    "host/user/root",
    "system",
    judges="commands run as root; anything else is an error",
    source="packages, units and users need it",
    ask="id -u",
)
def root(found: Found) -> Verdict:
    uid = found.system.uid
    if uid != 0:
        return error(
            "needs root on the host",
            "log in as root, or add '_sudo': True to the host in inventory.py (or pass --sudo)",
            f"uid {uid}",
        )
    return healthy("uid 0", "uid 0")


@check(
    "host/init/systemd",
    "system",
    judges="PID 1 is systemd",
    source="servers are units of systemd",
    ask="cat /proc/1/comm",
)
def systemd(found: Found) -> Verdict:
    if not found.system.systemd:
        return error(
            "systemd does not run this host (PID 1 is something else): units could not start",
            "boot the host with systemd, no container without it",
            found.text("init").strip(),
        )
    return healthy("PID 1 is systemd")


@check(
    "host/machine/supported",
    "system",
    judges="the machine is x86_64",
    source="the locks hold wheels for x86_64",
    ask="uname -m",
)
def machine(found: Found) -> Verdict:
    name = found.system.machine
    if name != "x86_64":
        return error(f"this is {name}: the locks hold wheels for x86_64", "choose another host", name)
    return healthy("x86_64", name)


@check(
    "host/os/supported",
    "system",
    judges="a system that was tried: Debian 12 and 13, Ubuntu 24.04",
    source="where the locks' wheels and the packages are tried; NeMo/Speech#8459: Ubuntu 22.04's Python 3.11.0rc1",
    ask="cat /etc/os-release",
)
def operating_system(found: Found) -> Verdict:
    name, version, title = found.system.os_id, found.system.os_version, found.system.os_name
    if version not in SUPPORTED.get(name, ()):
        tried = [f"{system.title()} {one}" for system, versions in SUPPORTED.items() for one in versions]
        why = KNOWN.get((name, version))
        return error(
            f"{title} is not supported{f': {why}' if why else ''}; tried are {', '.join(tried[:-1])} and {tried[-1]}",
            "install one of these",
            f"ID={name} VERSION_ID={version}",
        )
    return healthy(title, f"ID={name} VERSION_ID={version}")


@check(
    "host/glibc/minimum",
    "system",
    judges="glibc is no older than the release's wheels need",
    source="the release's manifest, glibc",
    ask="getconf GNU_LIBC_VERSION",
)
def glibc(found: Found) -> Verdict:
    here, needed = found.system.glibc, found.manifest.glibc
    if not at_least(here, needed):
        return error(
            f"glibc {here} is too old: the wheels of {found.manifest.name} need {needed}",
            "install a newer system, or choose an older release",
            found.text("glibc").strip(),
        )
    return healthy(f"glibc {here}, {needed} is needed")


@check(
    "host/python/tools",
    "system",
    judges=f"python3, where it is installed, is {OLDEST_TOOLS} or later: it runs our tools on the host",
    source="tomllib and hashlib.file_digest came with Python 3.11",
    ask="python3 --version",
)
def tools_python(found: Found) -> Verdict:
    version = found.system.python3
    if version is None:
        return healthy("no python3 yet, this run installs the distribution's")
    if not at_least(version, OLDEST_TOOLS):
        return error(
            f"python3 is {version}, our tools need {OLDEST_TOOLS}",
            "install a system whose own python3 is newer",
            f"python3 {version}",
        )
    return healthy(f"python3 is {version}", f"python3 {version}")


@check(
    python.CHECK,
    "system",
    judges="the distribution carries a Python that the release has locks for",
    source="the release's locks",
    settings=("python",),
    ask="ls /usr/bin/python3*",
    never_silenced=True,
)
def usable_python(found: Found) -> Verdict:
    if found.settings.environment == "existing":
        return healthy("the environment that is there brings its own")
    try:
        chosen = python.choose(found.system, found.manifest, found.settings)
    except Refused as refused:
        (finding,) = refused.findings
        return error(finding.line, finding.advice)
    return healthy(f"Python {chosen}")
