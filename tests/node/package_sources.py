"""What a node takes over from this machine so that apt, pip and uv work in it: sources, certificates, settings.

A mirror's address stands in this machine's configuration and is copied at run time, never written down here.
"""

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from tests.node.debian import Release, sources_file
from tests.node.disk import Disk
from tests.node.process import command

PIP_AND_UV = (
    Path("/etc/pip.conf"),
    Path("/etc/xdg/pip"),
    Path("/etc/uv"),
    Path.home() / ".config/pip",
    Path.home() / ".pip",
    Path.home() / ".config/uv",
)
CERTIFICATES = (Path("/etc/ssl/certs"), Path("/usr/local/share/ca-certificates"))
VARIABLES = re.compile(r"(PIP|UV)_\w+|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|\w+_(proxy|PROXY)")
# where this machine's pip and uv write, and which Python they use, means nothing in a node
LOCAL_VARIABLES = re.compile(
    r"(PIP|UV)_\w+_DIR|PIP_(TARGET|PREFIX|ROOT|USER|SRC|LOG|PYTHON|REQUIRE_VIRTUALENV)|"
    r"UV_(PYTHON\w*|PROJECT\w*|SYSTEM_PYTHON|TARGET|PREFIX|TOOL\w*|WORKING\w*)"
)
APT_SETTINGS = re.compile(r"Acquire::(https?::|Check-|Retries|ForceIPv)")


def take_over(disk: Disk, release: Release) -> list[Path]:
    """Write this machine's package sources to a node's disk.

    Returns the local folders (find-links, file:// indexes) that must be bound into the node at the same path.
    """
    disk.write(f"/etc/apt/sources.list.d/{release.distribution}.sources", sources_file(release.sources))
    disk.write("/etc/apt/apt.conf.d/80this-machine", _apt_settings())
    disk.write("/etc/resolv.conf", _resolv_conf())
    for source in (*CERTIFICATES, *PIP_AND_UV):
        if source.exists():
            disk.copy(source, _there(source))
    variables = package_variables(dict(os.environ))
    disk.write("/etc/environment", "".join(f'{name}="{value}"\n' for name, value in sorted(variables.items())))

    texts = list(variables.values())
    for source in PIP_AND_UV:
        files = source.rglob("*") if source.is_dir() else [source]
        texts += [file.read_text() for file in files if file.is_file()]
    folders, files_named = local_paths("\n".join(texts))
    keyrings = [Path(source.signed_by) for source in release.sources if source.signed_by.startswith("/")]
    for named in (*files_named, *keyrings):
        if not disk.has(_there(named)):
            disk.copy(named, _there(named))
    # a folder that the node has itself, such as /etc/ssl/certs, is its own
    return [folder for folder in folders if not disk.has(folder)]


def package_variables(environment: dict[str, str]) -> dict[str, str]:
    """The variables that say where packages come from, without those that say where this machine puts them."""
    return {
        name: value
        for name, value in environment.items()
        if VARIABLES.fullmatch(name) and not LOCAL_VARIABLES.fullmatch(name)
    }


def local_paths(text: str) -> tuple[list[Path], list[Path]]:
    """Existing folders and files that pip and uv settings name, by path or file:// URL.

    An index in .../NAME/simple stands for .../NAME, since its pages link to the folders beside it.
    """
    folders: set[Path] = set()
    files: set[Path] = set()
    for word in re.split(r"[\s,;\"'=\[\]{}]+", text):
        path = Path(word.removeprefix("file://"))
        if not path.is_absolute() or ".." in path.parts or path == Path("/"):
            continue
        if path.is_file():
            files.add(path)
        elif path.is_dir():
            is_index = path.name == "simple" and len(path.parts) > 3
            folders.add(path.parent if is_index else path)
    outermost = [folder for folder in folders if not folders.intersection(folder.parents)]
    return sorted(outermost), sorted(files)


def mirror_endpoint(release: Release) -> tuple[str, int]:
    """Host and port that apt talks to for the mirror: the mirror's own, or the proxy's."""
    scheme = urlsplit(release.mirror).scheme
    configured = command("apt-config", "dump", "--format", "%v%n", f"Acquire::{scheme}::Proxy").stdout.strip()
    proxy = configured or os.environ.get(f"{scheme}_proxy", "")
    url = urlsplit(release.mirror if proxy in {"", "DIRECT"} else proxy)
    return url.hostname or "", url.port or {"https": 443}.get(url.scheme, 80)


def _apt_settings() -> str:
    dump = command("apt-config", "dump").stdout.splitlines()
    kept = [line for line in dump if APT_SETTINGS.match(line) and '"";' not in line and "Auto-Detect" not in line]
    return "".join(f"{line}\n" for line in kept)


def _resolv_conf() -> str:
    """This machine's name servers; behind a local stub resolver, the real ones."""
    text = Path("/etc/resolv.conf").read_text()
    upstream = Path("/run/systemd/resolve/resolv.conf")
    if re.search(r"^nameserver\s+127\.", text, re.MULTILINE) and upstream.exists():
        return upstream.read_text()
    return text


def _there(path: Path) -> Path:
    """The path on the node: our home is root's."""
    home = Path.home()
    return Path("/root", path.relative_to(home)) if path.is_relative_to(home) else path


def wheel_is_at_hand(pattern: str) -> bool:
    """Whether a folder that this machine's pip or uv configuration names holds such a wheel."""
    texts = list(package_variables(dict(os.environ)).values())
    texts += [file.read_text() for source in PIP_AND_UV for file in (source, *source.rglob("*")) if file.is_file()]
    folders, _ = local_paths("\n".join(texts))
    return any(next(folder.glob(pattern), None) for folder in folders)
