"""The base tree: a bare Debian of this machine's own suite, or of SUITE, built once and cached. Ubuntu is untried."""

import hashlib
import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.node.process import NodeError, command, interrupts_deferred, locked, remove_tree

PACKAGES = ("systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "iproute2", "ca-certificates")
KEYRINGS = {
    "debian": Path("/usr/share/keyrings/debian-archive-keyring.gpg"),
    "ubuntu": Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
}
OPTIONS: tuple[str, ...] = ("trusted", "check-valid-until", "check-date")  # of a source: kept
COMPONENTS = {"debian": "main", "ubuntu": "main,universe"}


@dataclass(frozen=True)
class Source:
    """One apt source entry for binary packages."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str = ""
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Release:
    """What this machine runs, and where its packages come from: the first source serves `suite` itself."""

    distribution: str
    suite: str
    sources: tuple[Source, ...]

    @property
    def mirror(self) -> str:
        return self.sources[0].uri


def this_release() -> Release:
    """Read this machine's distribution, suite and apt sources; SUITE in the environment names another suite of the same
    archive. Raises NodeError when they cannot serve a node."""
    release = platform.freedesktop_os_release()
    distribution, own = release.get("ID", ""), release.get("VERSION_CODENAME", "")
    if distribution not in KEYRINGS or not own:
        raise NodeError(f"a node needs Debian or Ubuntu with a named release, this is {release.get('PRETTY_NAME')}")
    suite = os.environ.get("SUITE", own)
    sources = tuple(
        replace(source, suites=tuple(name.replace(own, suite, 1) for name in source.suites))
        for source in _distribution_sources(read_sources(Path("/etc/apt")), distribution, own)
    )
    if not sources:
        raise NodeError(f"no apt source of this machine serves {own} main: see /etc/apt/sources.list.d")
    return Release(distribution, suite, sources)


def _distribution_sources(sources: list[Source], distribution: str, suite: str) -> Iterator[Source]:
    """The entries of the distribution itself: a third party may also call its suite "bookworm" and "main"."""
    wanted = {suite, f"{suite}-updates", f"{suite}-security", f"{suite}/updates"}
    fitting = [s for s in sources if wanted.intersection(s.suites) and "main" in s.components]
    keyring = KEYRINGS[distribution].stem
    own = [s for s in fitting if not s.signed_by or keyring in s.signed_by] or fitting
    own.sort(key=lambda s: suite not in s.suites)  # stable: the entry that serves the suite itself comes first
    if not own or suite not in own[0].suites:
        return
    for s in own:
        suites = tuple(name for name in s.suites if name in wanted)
        yield Source(s.uri, suites, s.components, s.signed_by, s.options)


def read_sources(folder: Path) -> list[Source]:
    """Read all enabled `deb` entries below an apt folder, both formats, in apt's order."""
    files = [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]
    sources: list[Source] = []
    for file in files:
        if not file.is_file():
            continue
        if file.suffix == ".sources":
            sources += _deb822_sources(file.read_text())
        elif file.suffix == ".list":
            sources += _one_line_sources(file.read_text())
    return sources


def _deb822_sources(text: str) -> Iterator[Source]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for stanza in re.split(r"\n\s*\n", "\n".join(lines)):
        fields: dict[str, str] = {}
        key = ""
        for line in stanza.splitlines():
            if line[:1].isspace():
                fields[key] = f"{fields.get(key, '')}\n{line.strip()}"
            elif ":" in line:
                key, _, value = line.partition(":")
                key = key.strip().lower()
                fields[key] = value.strip()
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() in {"no", "false"}:
            continue
        options = {key: fields[key] for key in OPTIONS if key in fields}
        suites, components = tuple(fields["suites"].split()), tuple(fields.get("components", "").split())
        for uri in fields["uris"].split():
            yield Source(uri.rstrip("/"), suites, components, fields.get("signed-by", ""), options)


def _one_line_sources(text: str) -> Iterator[Source]:
    entry = re.compile(r"deb\s+(?:\[(?P<options>[^]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)\s*(?P<components>[^#]*)")
    for match in filter(None, map(entry.match, text.splitlines())):
        given = dict(pair.split("=", 1) for pair in (match["options"] or "").split() if "=" in pair)
        options = {key: given[key] for key in OPTIONS if key in given}
        components = tuple(match["components"].split())
        yield Source(match["uri"].rstrip("/"), (match["suite"],), components, given.get("signed-by", ""), options)


def sources_file(sources: tuple[Source, ...]) -> str:
    """The sources as one deb822 file."""
    stanzas = []
    for source in sources:
        fields = {
            "Types": "deb",
            "URIs": source.uri,
            "Suites": " ".join(source.suites),
            "Components": " ".join(source.components),
            "Signed-By": source.signed_by.replace("\n", "\n "),
            **{key.title(): value for key, value in source.options.items()},
        }
        stanzas.append("".join(f"{key}: {value}\n" for key, value in fields.items() if value))
    return "\n".join(stanzas)


def require_machine(packages_file: Path) -> None:
    """Raise NodeError unless we are root on a machine that has the Debian packages a node needs."""
    if os.geteuid() != 0:
        raise NodeError("a node needs root: it makes a network namespace and boots a system in it")
    packages = packages_file.read_text().split()
    asked = command("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages, check=False)
    installed = {line.split()[0] for line in asked.stdout.splitlines() if line.endswith(" installed")}
    if missing := [package for package in packages if package not in installed]:
        raise NodeError(f"missing Debian packages: apt-get install --no-install-recommends {' '.join(missing)}")


def base_tree(release: Release, store: Path) -> Path:
    """Path of the bare tree below `store`, built now if this machine has none for its suite and our package list."""
    wanted = " ".join([*PACKAGES, COMPONENTS[release.distribution]])
    tree = store / f"base-{release.suite}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"
    with locked(store / "base.lock"):
        if not tree.exists():
            for abandoned in store.glob("base-*.part"):
                remove_tree(abandoned)
            _build(release, tree)
    return tree


def _build(release: Release, tree: Path) -> None:
    part, log = tree.with_name(f"{tree.name}.part"), tree.with_name(f"{tree.name}.log")
    keyring = release.sources[0].signed_by
    keyring = keyring if Path(keyring).is_file() else str(KEYRINGS[release.distribution])
    try:
        # in namespaces of its own, so that debootstrap's mounts and processes end with it
        command(
            *("unshare", "--mount", "--pid", "--fork", "--kill-child=KILL"),
            *("debootstrap", "--variant=minbase", f"--keyring={keyring}", f"--include={','.join(PACKAGES)}"),
            *(f"--components={COMPONENTS[release.distribution]}", release.suite, part, release.mirror),
            log=log,
        )
        _make_anonymous(part)
        part.rename(tree)
    except BaseException as error:
        with interrupts_deferred():
            remove_tree(part)
        if isinstance(error, NodeError):
            raise NodeError(f"the base tree of {release.suite} was not built: {error}; see {log}") from None
        raise
    log.unlink()


def _make_anonymous(tree: Path) -> None:
    """Take out what each node must have for itself, and the downloads."""
    for key in (tree / "etc/ssh").glob("ssh_host_*"):
        key.unlink()
    for archive in (tree / "var/cache/apt").rglob("*"):
        if archive.is_file():
            archive.unlink()
    shutil.rmtree(tree / "var/lib/apt/lists")
    (tree / "var/lib/apt/lists/partial").mkdir(parents=True)
    for name in ("apt/sources.list", "machine-id", "hostname", "hosts", "resolv.conf", "environment"):
        (tree / "etc" / name).unlink(missing_ok=True)
