"""What systemd takes away from a unit of ours: files, capabilities, system calls, devices.

Nothing here says MemoryDenyWriteExecute for servers, nor mounts their caches noexec: Triton, nvcc and torch write
machine code and run it. Every directive is known to systemd 247 and later: `systemd-run` refuses one that it is not.
"""

from __future__ import annotations

from tasks.plan.service.options import Option
from tasks.plan.service.paths import FIGURES, KEPT, Paths
from tasks.plan.settings.settings import Settings

HOMES = ("/home", "/root", "/run/user")  # what ProtectHome closes

_EVERY = (
    Option("NoNewPrivileges", ("yes",), "a setuid program gives nothing"),
    Option("CapabilityBoundingSet", ("",), "none of root's powers"),
    Option("AmbientCapabilities", ("",), "none of root's powers"),
    Option("ProtectSystem", ("strict",), "every file system is read-only, but for ReadWritePaths, /dev and /tmp"),
    Option("ReadOnlyPaths", ("/run",), "together with ProtectProc, systemd 252 left it writable in a container"),
    Option("PrivateTmp", ("yes",), "/tmp and /var/tmp of its own"),
    Option("ProtectKernelTunables", ("yes",), "/proc/sys and /sys are read-only"),
    Option("ProtectKernelModules", ("yes",), "no module is loaded"),
    Option("ProtectKernelLogs", ("yes",), "the kernel's log is closed"),
    Option("ProtectControlGroups", ("yes",), "its limits stay as they are"),
    Option("ProtectClock", ("yes",), "the clock stays as it is"),
    Option("ProtectHostname", ("yes",), "the host's name stays as it is"),
    Option("ProtectProc", ("invisible",), "it sees no process of another user"),
    Option("RestrictNamespaces", ("yes",), "no namespace of its own: many holes of the kernel open there"),
    Option("RestrictSUIDSGID", ("yes",), "it leaves no setuid file behind"),
    Option("RestrictRealtime", ("yes",), "it takes no CPU from others for good"),
    Option("LockPersonality", ("yes",), "no old personality of the kernel"),
    Option("SystemCallArchitectures", ("native",), "no 32-bit system calls"),
    Option("SystemCallErrorNumber", ("EPERM",), "what is not allowed fails, and ends nothing"),
    Option("UMask", ("0077",), "what it writes is its own"),
)
_ADDRESSES = Option("RestrictAddressFamilies", ("AF_UNIX AF_INET AF_INET6 AF_NETLINK",), "no raw packets, no AF_ALG")
# By class, as /proc/devices names them: the numbers are drawn anew at each boot. A class that the kernel does not have
# when the unit starts stays closed, so sglang-pd-devices.service comes first.
_GPU_DEVICES = (
    "char-nvidia* rw",  # nvidia, nvidia-frontend, nvidia-uvm, nvidia-caps, nvidia-nvswitch, nvidia-nvlink, nvidia-fs
    "char-gdrdrv rw",
    "char-infiniband* rw",  # infiniband_verbs, infiniband_mad
    "/dev/infiniband/rdma_cm rw",
)
# Of @debug, pidfd_getfd alone: the ranks of a server hand GPU memory to each other by it. io_uring had more holes than
# any other call, and nothing here needs it.
_SERVER_CALLS = (
    "@system-service pidfd_getfd",
    "~@privileged io_uring_setup io_uring_enter io_uring_register",
)


def every(settings: Settings, paths: Paths) -> tuple[Option, ...]:
    """What any unit of ours may have."""
    return (
        *of_server(settings, paths, on_gpu=True),
        *of_router(settings),
        *of_watchdog(settings),
        *of_figures(settings, on_gpu=True),
    )


def of_server(settings: Settings, paths: Paths, *, on_gpu: bool) -> tuple[Option, ...]:
    """Of a unit that runs a server."""
    return (
        *_EVERY,
        Option("ReadWritePaths", (paths.cache,), "what it compiles; the model stays as it is"),
        _protect_home(settings),
        Option("DevicePolicy", ("closed",), "no device but those named here, /dev/null and the like"),
        *([Option("DeviceAllow", _GPU_DEVICES, "GPUs and what moves memory between them")] if on_gpu else []),
        _ADDRESSES,
        Option("SystemCallFilter", _SERVER_CALLS, "no mounts, modules, ptrace, clocks, io_uring"),
    )


def of_tool(settings: Settings, paths: Paths, *, on_gpu: bool) -> tuple[Option, ...]:
    """Of a unit that measures or compiles as a server would, and leaves its result below state_dir."""
    wider = Option("ReadWritePaths", (paths.state,), "its result")
    server = of_server(settings, paths, on_gpu=on_gpu)
    return tuple(wider if option.name == wider.name else option for option in server)


def of_router(settings: Settings) -> tuple[Option, ...]:
    """Of the router's unit: it parses what strangers send, and needs neither GPUs nor a compiler."""
    return (
        *_EVERY,
        _protect_home(settings),
        Option("PrivateDevices", ("yes",), "no device but /dev/null and the like"),
        Option("PrivateUsers", ("yes",), "it knows no user but its own"),
        Option("ProcSubset", ("pid",), "of /proc it sees processes alone"),
        Option("MemoryDenyWriteExecute", ("yes",), "it runs no code that it wrote"),
        _ADDRESSES,
        Option(
            "SystemCallFilter",
            ("@system-service", "~@privileged @resources io_uring_setup io_uring_enter io_uring_register"),
            "no mounts, modules, ptrace, clocks, io_uring",
        ),
    )


def of_watchdog(settings: Settings) -> tuple[Option, ...]:
    """Of the unit that restarts what is at fault: root, who asks systemd alone and has a child become another user."""
    of_its_own = {
        "CapabilityBoundingSet": Option(
            "CapabilityBoundingSet", ("CAP_SETUID CAP_SETGID CAP_KILL",), "who asks is another user, and may be ended"
        ),
        # a user that it does not know it cannot become
        "PrivateUsers": None,
        "SystemCallFilter": Option(
            "SystemCallFilter",
            ("@system-service", "~@privileged @resources io_uring_setup io_uring_enter io_uring_register", "@setuid"),
            "no mounts, modules, ptrace, clocks, io_uring",
        ),
    }
    every = [of_its_own.get(option.name, option) for option in of_router(settings)]
    return tuple(option for option in every if option)


def of_figures(settings: Settings, *, on_gpu: bool) -> tuple[Option, ...]:
    """Of the unit that writes figures of the host: root, for what root alone may read. It asks systemd and nvidia-smi;
    what the service user can write, a child of that user reads."""
    of_its_own = {
        "CapabilityBoundingSet": Option(
            "CapabilityBoundingSet", ("CAP_SETUID CAP_SETGID CAP_KILL CAP_SYSLOG",), "another user asks the servers"
        ),
        "ProtectKernelLogs": None,  # Xids stand there
    }
    every = [of_its_own.get(option.name, option) for option in _EVERY]
    return (
        *(option for option in every if option),
        Option("ReadWritePaths", (FIGURES, KEPT), "what it writes"),
        _protect_home(settings),
        Option("DevicePolicy", ("closed",), "no device but those named here, /dev/null and the like"),
        *([Option("DeviceAllow", _GPU_DEVICES, "nvidia-smi asks the GPUs")] if on_gpu else []),
        _ADDRESSES,
        Option(
            "SystemCallFilter",
            (
                "@system-service",
                "~@privileged @resources io_uring_setup io_uring_enter io_uring_register",
                "@setuid syslog",
            ),
            "no mounts, modules, ptrace, clocks, io_uring",
        ),
    )


def _protect_home(settings: Settings) -> Option:
    """Closed, or where something that is served lies there, read-only: folders of others are then as open as their
    owners left them."""
    asked = {
        "model_dir": settings.model_dir,
        "state_dir": settings.state_dir,
        "root_dir": settings.root_dir,
        "existing_python": settings.existing_python,
        "existing_router_python": settings.existing_router_python,
        **{f"existing_paths[{number}]": path for number, path in enumerate(settings.existing_paths)},
    }
    for name, path in asked.items():
        if path and any(path == home or path.startswith(f"{home}/") for home in HOMES):
            return Option("ProtectHome", ("read-only",), f"{name} lies in {path}")
    return Option("ProtectHome", ("yes",), "/home, /root and /run/user are empty for it")
