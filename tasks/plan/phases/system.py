"""What the host itself gets: Debian packages, folders, kernel settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tasks.plan.files import WantedDirectory, WantedFile
from tasks.plan.host.matrices import number_list, spell_number_list
from tasks.plan.plan import Plan
from tasks.plan.release.manifest import Manifest
from tasks.plan.service.paths import JOURNALD, NEEDRESTART

KERNEL_SETTINGS = ("net.ipv4.ip_local_reserved_ports", "kernel.numa_balancing")
KERNEL_LIMITS = ("net.ipv4.ip_local_port_range", "fs.nr_open")  # only read


def debian_packages(manifest: Manifest, pythons: Iterable[str]) -> list[str]:
    """Packages for a release with any of these Pythons: headers for Triton, numactl for the binding, pciutils for the
    checks."""
    of_python = {f"python{version}{end}" for version in pythons for end in ("", "-venv", "-dev")}
    return sorted({"python3", "numactl", "pciutils", *of_python, *manifest.system_packages})


@dataclass(frozen=True)
class KernelSetting:
    """A sysctl: wanted and found in the kernel's own spelling."""

    key: str
    wanted: str
    found: str
    reason: str


def packages(plan: Plan) -> tuple[str, ...]:
    """Debian packages: Python with its headers, what JIT compiles with, what binds and watches."""
    pythons = [] if plan.release.existing else [plan.release.python]
    if not plan.settings.serves:
        return tuple(sorted({"python3", *(f"python{version}{end}" for version in pythons for end in ("", "-venv"))}))
    return tuple(debian_packages(plan.release.manifest, pythons))


def needrestart() -> tuple[tuple[WantedDirectory, ...], WantedFile]:
    """What keeps needrestart from restarting servers when an upgrade brings a new libc (awsome-distributed-ai#1165).

    There before needrestart is: it may come later.
    """
    folder = NEEDRESTART.rpartition("/")[0]
    text = "# written by sglang-pd-playbook: servers restart with its next run, or by hand\n"
    text += "$nrconf{override_rc}{qr(^sglang-pd-)} = 0;\n"
    folders = (WantedDirectory(folder.rpartition("/")[0]), WantedDirectory(folder))
    return folders, WantedFile(NEEDRESTART, text.encode())


def journal(plan: Plan) -> tuple[WantedDirectory, WantedFile] | None:
    """How much of what servers log the host keeps; None where it keeps what it did."""
    if plan.settings.journal_gb is None:
        return None
    text = f"# written by sglang-pd-playbook: setting journal_gb\n[Journal]\nSystemMaxUse={plan.settings.journal_gb}G\n"
    return WantedDirectory(JOURNALD.rpartition("/")[0]), WantedFile(JOURNALD, text.encode())


def directories(plan: Plan) -> tuple[WantedDirectory, ...]:
    """Folders with their owners, those above first."""
    user, group, paths = plan.settings.service_user, plan.group, plan.paths
    below_state = (paths.models, paths.cache, paths.release_cache(plan.release.id))
    return (
        WantedDirectory(paths.root),
        WantedDirectory(paths.bin),
        WantedDirectory(paths.locks, "700"),  # earlier specs too: a URL can hold a password
        WantedDirectory(paths.releases),
        *([WantedDirectory(paths.bundled), WantedDirectory(paths.model)] if plan.profile.source.bundled else []),
        WantedDirectory(paths.config, "750", "root", group),
        WantedDirectory(paths.state, "750", user, group),
        *(WantedDirectory(path, "750", user, group, by=user) for path in below_state),
    )


def kernel_settings(plan: Plan) -> tuple[KernelSetting, ...]:
    """Those that this kernel has."""
    wanted = []
    reserved = plan.system.sysctls.get("net.ipv4.ip_local_reserved_ports")
    if plan.settings.reserve_ports and reserved is not None:
        own = {port for instance in plan.instances for port, _ in instance.ports}
        own |= {*plan.settings.monitoring_ports.values()}
        wanted.append(
            KernelSetting(
                "net.ipv4.ip_local_reserved_ports",
                spell_number_list(number_list(reserved) | own),
                spell_number_list(number_list(reserved)),
                "no outgoing connection may take a port that a server listens on after its restart",
            )
        )
    balancing = plan.system.sysctls.get("kernel.numa_balancing")
    if plan.settings.disable_numa_balancing and balancing is not None:
        wanted.append(
            KernelSetting(
                "kernel.numa_balancing", "0", balancing, "page migration stalls servers that are bound to a node"
            )
        )
    return tuple(wanted)
