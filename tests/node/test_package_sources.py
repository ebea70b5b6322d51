"""Where a node's packages come from is read from this machine, in whichever form it is written there."""

from pathlib import Path

import pytest

from tests.node import debian, package_sources
from tests.node.debian import Source
from tests.node.process import NodeError

THIRD_PARTY = """\
# a vendor that calls its suite as Debian does
Types: deb
URIs: https://vendor.example/apt
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/vendor.gpg
"""
DEB822 = """\
Types: deb deb-src
# a comment inside a stanza
URIs: http://mirror.example/debian/
Suites: bookworm bookworm-updates bookworm-backports
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main
"""
ONE_LINE = """\
deb [arch=amd64 signed-by=/usr/share/keyrings/vendor.gpg] https://vendor.example/apt bookworm main
# deb http://off.example/debian bookworm main
deb-src http://source.example/debian bookworm main
deb http://mirror.example/debian bookworm main contrib # a comment
deb [trusted=yes] http://mirror.example/debian-security bookworm-security main
"""


def apt_folder(tmp_path: Path, **files: str) -> Path:
    (tmp_path / "sources.list.d").mkdir()
    for name, text in files.items():
        (tmp_path / "sources.list.d" / name.replace("_", ".")).write_text(text)
    return tmp_path


def release_of(folder: Path, monkeypatch: pytest.MonkeyPatch, suite: str = "bookworm") -> debian.Release:
    sources = debian.read_sources(folder)
    monkeypatch.setattr(debian, "read_sources", lambda _folder: sources)
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "debian", "VERSION_CODENAME": suite})
    return debian.this_release()


def test_deb822(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = release_of(apt_folder(tmp_path, a_sources=THIRD_PARTY, debian_sources=DEB822), monkeypatch)
    assert release.mirror == "http://mirror.example/debian"
    assert release.sources == (
        Source(
            "http://mirror.example/debian",
            ("bookworm", "bookworm-updates"),
            ("main", "contrib"),
            "/usr/share/keyrings/debian-archive-keyring.gpg",
        ),
        Source("http://mirror.example/debian-security", ("bookworm-security",), ("main",)),
    )


def test_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = release_of(apt_folder(tmp_path, a_list=ONE_LINE), monkeypatch)
    assert release.sources == (
        Source("http://mirror.example/debian", ("bookworm",), ("main", "contrib")),
        Source("http://mirror.example/debian-security", ("bookworm-security",), ("main",), "", {"trusted": "yes"}),
    )


def test_security_listed_first_is_not_the_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    security, main = ONE_LINE.splitlines()[-1], ONE_LINE.splitlines()[-2]
    assert release_of(apt_folder(tmp_path, a_list=f"{security}\n{main}\n"), monkeypatch).mirror.endswith("/debian")


def test_what_is_written_for_the_node_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = release_of(apt_folder(tmp_path, a_list=ONE_LINE, debian_sources=DEB822), monkeypatch)
    (tmp_path / "node").mkdir()
    written = apt_folder(tmp_path / "node", debian_sources=debian.sources_file(release.sources))
    monkeypatch.undo()
    assert tuple(debian.read_sources(written)) == release.sources


def test_another_suite_of_the_same_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUITE", "trixie")
    release = release_of(apt_folder(tmp_path, debian_sources=DEB822), monkeypatch)
    assert release.suite == "trixie"
    assert [source.suites for source in release.sources] == [("trixie", "trixie-updates"), ("trixie-security",)]


def test_no_source_of_this_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NodeError, match="no apt source of this machine serves trixie main"):
        release_of(apt_folder(tmp_path, debian_sources=DEB822), monkeypatch, suite="trixie")


def test_other_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "fedora", "PRETTY_NAME": "Fedora 43"})
    with pytest.raises(NodeError, match=r"needs Debian or Ubuntu .* this is Fedora 43"):
        debian.this_release()


@pytest.mark.parametrize(
    ("uri", "proxy", "endpoint"),
    [
        ("http://mirror.example/debian", "", ("mirror.example", 80)),
        ("https://mirror.example/debian", "", ("mirror.example", 443)),
        ("http://mirror.example:3142/debian", "", ("mirror.example", 3142)),
        ("http://mirror.example/debian", "http://proxy.example:3128", ("proxy.example", 3128)),
    ],
)
def test_what_apt_talks_to(
    uri: str, proxy: str, endpoint: tuple[str, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configuration = tmp_path / "apt.conf"
    configuration.write_text("#clear Acquire::http::Proxy;\n#clear Acquire::https::Proxy;\n")
    monkeypatch.setenv("APT_CONFIG", str(configuration))
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.delenv("https_proxy", raising=False)
    release = debian.Release("debian", "bookworm", (Source(uri, ("bookworm",), ("main",)),))
    assert package_sources.mirror_endpoint(release) == endpoint


def test_variables() -> None:
    sources = {
        "PIP_INDEX_URL": "https://mirror.example/simple",
        "PIP_CERT": "/etc/ssl/own.pem",
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "SSL_CERT_DIR": "/etc/ssl/certs",
        "REQUESTS_CA_BUNDLE": "/etc/ssl/own.pem",
        "https_proxy": "http://proxy.example:3128",
        "NO_PROXY": "localhost",
    }
    elsewhere = {"PIP_CACHE_DIR": "/c", "PIP_TARGET": "/t", "UV_PYTHON": "3.12", "UV_CACHE_DIR": "/u", "HOME": "/root"}
    assert package_sources.package_variables(sources | elsewhere) == sources


def test_local_paths(tmp_path: Path) -> None:
    wheels, index, flat = tmp_path / "wheels", tmp_path / "pypi/simple", tmp_path / "flat/dist"
    for folder in (wheels, index, flat, wheels / "more"):
        folder.mkdir(parents=True)
    constraints = tmp_path / "constraints.txt"
    constraints.touch()
    text = f"""
        [global]
        find-links = {wheels}
            {wheels}/more
        extra-index-url = file://{index} https://mirror.example/simple
        index-url = file://{flat}
        constraint={constraints}
        cache-dir = {tmp_path}/absent
        [[index]] url = "file://{index}"
    """
    folders, files = package_sources.local_paths(text)
    assert folders == sorted([wheels, index.parent, flat])
    assert files == [constraints]
