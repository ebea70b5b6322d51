"""Where uv, and the pip that installs it, really take packages from: every setting, and what a host says for itself.

Each place holds a build of alpha of its own and the lock names them all, so what was installed tells from where.
Indexes on loopback note who asks; what is asked besides them, such as the public index, shows at a proxy before it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pip._internal.models.index import PyPI

from tests.bin.indexes import Index, certificate, index, proxy
from tests.bin.test_pd_build import PYTHON, Host, failed, pd_build
from tests.bin.tools import closed_port, serving_socket
from tests.bin.wheels import pin, wheel

PUBLIC = PyPI.netloc  # where pip and uv ask if nobody says otherwise
NOWHERE = "/nowhere/ca.pem"


@dataclass(frozen=True)
class Case:
    """What is configured, and what follows from it. {first} is the URL of that index, {folder} a path, and so on."""

    uv: str | None  # from which place uv installs alpha; None: from nowhere
    asked: str  # whom it asks, and nobody else
    pip: str | None = "as uv"
    pip_asks: str = "as uv"
    spec: dict[str, Any] = field(default_factory=dict)  # settings
    host: dict[str, str] = field(default_factory=dict)  # the host's own variables
    uv_toml: str = ""
    user_toml: str = ""  # uv.toml in the user's own folder
    pip_conf: str = ""
    netrc: str = ""


# the host's own configuration names all that it can, and leads nowhere
ELSEWHERE = {
    "PIP_INDEX_URL": "{second}", "PIP_EXTRA_INDEX_URL": "{second}", "PIP_FIND_LINKS": "{other}", "PIP_CERT": NOWHERE,
    "UV_DEFAULT_INDEX": "{second}", "UV_INDEX": "{second}", "UV_FIND_LINKS": "{other}", "SSL_CERT_FILE": NOWHERE,
    "UV_INDEX_URL": "{second}", "UV_EXTRA_INDEX_URL": "{second}", "UV_NATIVE_TLS": "1",
}  # fmt: skip
TOML = 'find-links = ["{other}"]\nnative-tls = true\n[[index]]\nurl = "{second}"\n'
CONF = "[global]\nindex-url = {second}\nfind-links = {other}\n"

CASES = {
    "nothing": Case(None, PUBLIC),
    # settings
    "index": Case("first", "first", spec={"index_url": "{first}"}),
    "extra index": Case("second", "empty second", spec={"index_url": "{empty}", "extra_index_urls": ["{second}"]}),
    "extra index alone, besides the host's": Case(
        "second", "empty second", spec={"extra_index_urls": ["{second}"]}, host={"PIP_INDEX_URL": "{empty}"}
    ),
    "find-links are besides the index: no index, no package": Case(
        None, PUBLIC, "folder", spec={"find_links": ["{folder}"]}
    ),
    "find-links besides an index": Case(
        "folder", "empty", spec={"index_url": "{empty}", "find_links": ["{folder}"]}
    ),
    "find-links: a page": Case("first", "empty first", spec={"index_url": "{empty}", "find_links": ["{first_flat}"]}),
    "find-links: two folders": Case(
        "other", "empty", spec={"index_url": "{empty}", "find_links": ["{bare}", "{other}"]}
    ),
    "a certificate": Case("tls", "tls", spec={"index_url": "{tls}", "certificate": "{root}/server.crt"}),
    "no certificate for it": Case(None, "", spec={"index_url": "{tls}"}),
    "a certificate before the host's": Case(
        "tls", "tls", spec={"index_url": "{tls}", "certificate": "{root}/server.crt"},
        host={"PIP_CERT": NOWHERE, "SSL_CERT_FILE": NOWHERE},
    ),
    "a wheelhouse": Case("folder", "", spec={"wheelhouse": "{folder}"}),
    "a wheelhouse beside all that a host can say": Case(
        "folder", "", spec={"wheelhouse": "{folder}"}, host=ELSEWHERE, uv_toml=TOML, pip_conf=CONF
    ),
    "a wheelhouse that lacks it, beside a host that has it": Case(
        None, "", spec={"wheelhouse": "{bare}"}, host=ELSEWHERE, uv_toml=TOML, pip_conf=CONF
    ),
    "an index before the host's": Case(
        "first", "first", spec={"index_url": "{first}"},
        host={"PIP_INDEX_URL": "{second}", "UV_DEFAULT_INDEX": "{second}", "UV_INDEX_URL": "{second}"},
    ),
    "an index though pip's and uv's configuration say no index": Case(
        "first", "first", spec={"index_url": "{first}"}, host={"PIP_NO_INDEX": "1"}, uv_toml="no-index = true\n"
    ),
    "an extra index in the place of the host's": Case(
        "first", "empty first", spec={"extra_index_urls": ["{first}"]},
        host={"PIP_INDEX_URL": "{empty}", "PIP_EXTRA_INDEX_URL": "{second}", "UV_EXTRA_INDEX_URL": "{second}"},
    ),
    "find-links in the place of the host's": Case(
        "folder", "empty", spec={"find_links": ["{folder}"]},
        host={"PIP_INDEX_URL": "{empty}", "PIP_FIND_LINKS": "{other}", "UV_FIND_LINKS": "{other}"},
    ),
    # the host's pip
    "pip's index": Case("first", "first", host={"PIP_INDEX_URL": "{first}"}),
    "pip's extra indexes": Case(
        "second", "empty bare second", host={"PIP_INDEX_URL": "{empty}", "PIP_EXTRA_INDEX_URL": "{bare_index}\n{second}"}
    ),
    "pip's find-links without an index": Case(
        "other", "", host={"PIP_NO_INDEX": "true", "PIP_FIND_LINKS": "{bare} {other}"}
    ),
    "pip's find-links besides an index": Case(
        "folder", "empty", host={"PIP_INDEX_URL": "{empty}", "PIP_FIND_LINKS": "{folder}"}
    ),
    "pip.conf": Case("first", "first", pip_conf="[global]\nindex-url = {first}\n"),
    "a folder in pip.conf that is not there": Case(
        "folder", "", pip_conf="[global]\nno-index = true\nfind-links =\n  {root}/gone\n  {folder}\n"
    ),
    "pip's certificate": Case("tls", "tls", host={"PIP_INDEX_URL": "{tls}", "PIP_CERT": "{root}/server.crt"}),
    "pip's folder of certificates": Case("tls", "tls", host={"PIP_INDEX_URL": "{tls}", "PIP_CERT": "{root}/hashed"}),
    "pip's trusted host": Case("tls", "tls", host={"PIP_INDEX_URL": "{tls}", "PIP_TRUSTED_HOST": "a.test\n127.0.0.1"}),
    "pip's proxy": Case(None, PUBLIC, host={"PIP_PROXY": "{proxy}", "HTTPS_PROXY": "", "HTTP_PROXY": ""}),
    "a password in pip's index": Case("locked", "locked", host={"PIP_INDEX_URL": "{locked_user}"}),
    "a password in netrc": Case(
        "locked", "locked", host={"PIP_INDEX_URL": "{locked}"}, netrc="machine 127.0.0.1 login user password hush\n"
    ),
    "no password": Case(None, "locked", host={"PIP_INDEX_URL": "{locked}"}),
    # the host's uv; pip, which knows nothing of it, installs uv from there too where it has no place of its own
    "uv's index": Case("first", "first", host={"UV_DEFAULT_INDEX": "{first}"}),
    "uv's index with a name": Case("first", "first", host={"UV_DEFAULT_INDEX": "corp={first}"}),
    "uv's index, as it was spelled before": Case("first", "first", host={"UV_INDEX_URL": "{first}"}),
    "uv's extra index": Case("second", "empty second", host={"UV_DEFAULT_INDEX": "{empty}", "UV_INDEX": "{second}"}),
    "uv's extra index, as it was spelled before": Case(
        "second", "empty second bare", host={
            "UV_INDEX_URL": "{empty}", "UV_EXTRA_INDEX_URL": "{second}", "UV_INDEX": "{bare_index}",
        },
    ),
    "uv's find-links": Case(
        "other", "empty", host={"UV_DEFAULT_INDEX": "{empty}", "UV_FIND_LINKS": "{bare},{other}"}
    ),
    "uv's certificate": Case("tls", "tls", host={"UV_DEFAULT_INDEX": "{tls}", "SSL_CERT_FILE": "{root}/server.crt"}),
    "uv's insecure host": Case("tls", "tls", host={"UV_DEFAULT_INDEX": "{tls}", "UV_INSECURE_HOST": "127.0.0.1"}),
    "a password of uv's index": Case(
        "locked", "locked", None, host={
            "UV_DEFAULT_INDEX": "corp={locked}", "UV_INDEX_CORP_USERNAME": "user", "UV_INDEX_CORP_PASSWORD": "hush",
        },
    ),
    "certificates of the system, as it was spelled before": Case(
        "first", "first", host={"UV_DEFAULT_INDEX": "{first}", "UV_NATIVE_TLS": "true"}
    ),
    "uv offline": Case(None, "", "first", "first", host={"UV_DEFAULT_INDEX": "{first}", "UV_OFFLINE": "1"}),
    "uv before pip, pip before uv": Case(
        "first", "first", "second", "second", host={"UV_DEFAULT_INDEX": "{first}", "PIP_INDEX_URL": "{second}"}
    ),
    "what else uv heeds: the lock alone decides": Case(
        "first", "first", host={
            "UV_DEFAULT_INDEX": "{first}", "UV_EXCLUDE_NEWER": "2020-01-01", "UV_NO_BINARY": "1",
            "UV_TORCH_BACKEND": "cpu", "UV_CONSTRAINT": "{root}/gone.txt", "UV_REQUIRE_HASHES": "0",
        },
    ),
    "uv.toml": Case("first", "first", uv_toml='[[index]]\nurl = "{first}"\ndefault = true\n'),
    "uv.toml, as it was spelled before": Case("first", "first", uv_toml='native-tls = true\nindex-url = "{first}"\n'),
    "uv.toml, of uv pip": Case("first", "first", uv_toml='index-url = "{second}"\n[pip]\nindex-url = "{first}"\n'),
    "extra indexes of uv.toml": Case(
        "second", "empty second",
        uv_toml='[[index]]\nurl = "{second}"\n[[index]]\nurl = "{empty}"\ndefault = true\n',
    ),
    "find-links of uv.toml without an index": Case("folder", "", uv_toml='no-index = true\nfind-links = ["{folder}"]\n'),
    "uv.toml before pip": Case(
        "first", "first", "second", "second", uv_toml='index-url = "{first}"\n', host={"PIP_INDEX_URL": "{second}"}
    ),
    "the user's uv.toml": Case("first", "first", user_toml='index-url = "{first}"\n'),
    "the user's uv.toml, not to be read": Case(
        "first", "first", user_toml='index-url = "{second}"\n', host={"UV_NO_CONFIG": "1", "PIP_INDEX_URL": "{first}"}
    ),
    "a wheelhouse beside the user's uv.toml": Case(
        "folder", "", spec={"wheelhouse": "{folder}"}, user_toml='find-links = ["{other}"]\nindex-url = "{second}"\n'
    ),
    "an index beside uv.toml": Case("first", "first", spec={"index_url": "{first}"}, uv_toml='index-url = "{second}"\n'),
}  # fmt: skip


@dataclass
class World:
    root: Path
    home: Path
    indexes: dict[str, Index]
    proxy: str
    hosts: list[str]  # that the proxy was asked for

    def filled(self, given: Any) -> Any:
        """`given`, a text or what holds texts, with names as the URLs and paths of this world."""
        if isinstance(given, list):
            return [self.filled(item) for item in given]
        if isinstance(given, dict):
            return {key: self.filled(value) for key, value in given.items()}
        names = {name: served.url for name, served in self.indexes.items()}
        names |= {name: str(self.root / name) for name in ("folder", "other", "bare")}
        return given.format(
            **names, root=self.root, proxy=self.proxy, first_flat=self.indexes["first"].flat,
            bare_index=self.indexes["bare"].url, locked_user=self.indexes["locked"].url.replace("//", "//user:hush@"),
        )  # fmt: skip

    def asked(self) -> set[str]:
        return {name for name, served in self.indexes.items() if served.authorizations} | set(self.hosts)

    def forget(self) -> None:
        self.hosts.clear()
        for served in self.indexes.values():
            served.authorizations.clear()

    def of(self, case: Case) -> tuple[Any, dict[str, str]]:
        """The spec and the environment of a case."""
        host = Host(self.home)
        host.lock((self.root / "lock.txt").read_text(), pin(host.route))
        host.spec |= {"wheelhouse": None} | self.filled(case.spec)
        host.command("build")
        ours = ("_proxy", "_ca_bundle")
        environ = {name: value for name, value in host.environ.items() if not name.lower().endswith(ours)}
        environ |= {"PIP_RETRIES": "0", "NO_PROXY": "127.0.0.1", "HTTPS_PROXY": self.proxy, "HTTP_PROXY": self.proxy}
        for variable, text in (("UV_CONFIG_FILE", case.uv_toml), ("PIP_CONFIG_FILE", case.pip_conf)):
            if text:
                environ[variable] = str(self.home / variable)
                Path(environ[variable]).write_text(self.filled(text))
        if case.user_toml:
            (self.home / ".config/uv").mkdir(parents=True)
            (self.home / ".config/uv/uv.toml").write_text(self.filled(case.user_toml))
        if case.netrc:
            (self.home / ".netrc").write_text(case.netrc)
            (self.home / ".netrc").chmod(0o600)
        environ |= self.filled(case.host)
        return pd_build.read_spec(self.home / "r1.json"), {name: value for name, value in environ.items() if value}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("places")
    pins = []
    for name in ("first", "second", "tls", "locked", "folder", "other"):
        pins.append(pin(wheel(root / name, "alpha", "1.0", {"alpha.py": f"{name}\n"})).partition("\n")[2].strip())
    (root / "lock.txt").write_text(f"alpha==1.0 {' '.join(pins)}\n")
    for name in ("empty", "bare", "hashed"):
        (root / name).mkdir()
    public = certificate(root / "server.pem", "127.0.0.1")
    (root / "hashed/server.crt").write_bytes(public.read_bytes())
    subprocess.run(["openssl", "rehash", root / "hashed"], check=True, capture_output=True)
    options: dict[str, dict[str, Any]] = {"tls": {"pem": root / "server.pem"}, "locked": {"user": "user:hush"}}
    with ExitStack() as servers:
        indexes = {
            name: servers.enter_context(index(root / name, **options.get(name, {})))
            for name in ("first", "second", "tls", "locked", "empty", "bare")
        }
        yield World(root, root, indexes, *servers.enter_context(proxy()))


@pytest.fixture
def world(places: World, tmp_path: Path) -> World:
    places.forget()
    places.home = tmp_path
    return places


def set_environment(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    for name in set(os.environ) - set(environ):
        monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", CASES)
def test_uv(name: str, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    spec, environ = world.of(case)
    set_environment(monkeypatch, environ)
    environment = world.home / "environment"
    fault = ""
    with (world.home / "held").open("w") as held:
        uv = pd_build.Uv(spec, held.fileno())
        uv.run("venv", "--quiet", "--python", sys.executable, environment)
        try:
            uv.install("sync", "--python", environment / "bin/python", spec.lock)
        except pd_build.Fault as error:
            fault = str(error)
    installed = environment / f"lib/python{PYTHON}/site-packages/alpha.py"
    said = capsys.readouterr().out
    assert (installed.read_text().strip() if installed.exists() else None) == case.uv, fault + said
    assert world.asked() == set(case.asked.split())
    assert (fault == "") == (case.uv is not None)
    assert "warning" not in said and "hush" not in said + fault and "Traceback" not in fault


# what pip does with its own configuration is pip's affair
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("pip's ")])
def test_pip(name: str, world: World, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    spec, environ = world.of(case)
    fetched = world.home / "fetched"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--no-cache-dir", "--require-hashes", "--dest", str(fetched)]
    fault = ""
    try:
        pd_build.run_pip([*command, "--requirement", str(spec.lock)], pd_build.pip_environment(spec, environ))
    except pd_build.Fault as error:
        fault = str(error)
    wheels = list(fetched.glob("*.whl"))
    came = zipfile.ZipFile(wheels[0]).read("alpha.py").decode().strip() if wheels else None
    said = capsys.readouterr().out
    assert came == (case.uv if case.pip == "as uv" else case.pip), fault + said
    assert world.asked() == set((case.asked if case.pip_asks == "as uv" else case.pip_asks).split())
    assert (fault == "") == (came is not None)
    assert "hush" not in said + fault and "\n" not in fault


def test_pips_time_limit_is_uvs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving_socket() as port:
        index_url = f"http://127.0.0.1:{port}/simple"
        spec, environ = world.of(Case(None, "", host={"PIP_INDEX_URL": index_url, "PIP_TIMEOUT": "0.2"}))
        set_environment(monkeypatch, environ)
        with (world.home / "held").open("w") as held:
            uv = pd_build.Uv(spec, held.fileno())
            uv.run("venv", "--quiet", "--python", sys.executable, world.home / "environment")
            with pytest.raises(pd_build.Fault, match=r"(?i)timed? ?out"):
                uv.install("sync", "--python", world.home / "environment/bin/python", spec.lock)


def test_the_installer_is_installed_from_its_lock(tmp_path: Path) -> None:
    host = Host(tmp_path)
    made = wheel(host.wheels, "uv", "1.0", {"uv.py": "def main():\n    print('here')\n"}, "uv = uv:main")
    (tmp_path / "uv_lock.txt").write_text(pin(made))
    host.spec["uv"] = str(tmp_path / "tools/uv/bin/uv")
    done = host.run("installer")
    assert (done.returncode, done.stderr) == (0, "")
    assert subprocess.run([host.spec["uv"]], capture_output=True, text=True, check=True).stdout == "here\n"
    made.unlink()
    failed(host, host.run("installer"), "No matching distribution found for uv==1.0")


def test_why_an_index_does_not_answer_the_installer(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.spec |= {"wheelhouse": None, "index_url": f"http://127.0.0.1:{closed_port()}/simple"}
    host.spec["uv"] = str(tmp_path / "tools/uv/bin/uv")
    host.environ |= {"PIP_RETRIES": "1"}
    failed(host, host.run("installer"), "No matching distribution found for uv==0.0 (", "Connection refused")


# --- reading what the host says -----------------------------------------------------------------------------


@pytest.fixture
def configured(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """What a spec without sources adds to uv's variables, for a host whose files stand below tmp_path."""
    (tmp_path / "host").mkdir()
    host = Host(tmp_path / "host")
    host.spec |= {"wheelhouse": None}
    host.command("build")

    def answer(**variables: str) -> dict[str, str]:
        environ = {"HOME": str(tmp_path / "root"), "UV_SYSTEM_CERTS": "1", "UV_INDEX_STRATEGY": "first-index"}
        _, found = pd_build.sources(pd_build.read_spec(host.root / "r1.json"), environ | variables, tmp_path)
        return {name: value for name, value in found.items() if name not in environ | variables}

    return answer


def pip_conf(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_pip_files_in_their_order(configured: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    assert configured() == {}
    pip_conf(tmp_path / "etc/xdg/pip/pip.conf", "[global]\nindex-url = https://a.test/s\ntimeout = 7\n")
    pip_conf(tmp_path / "etc/pip.conf", "[global]\nindex-url = https://b.test/s\n")
    assert configured() == {"UV_DEFAULT_INDEX": "https://b.test/s", "UV_HTTP_TIMEOUT": "7"}
    pip_conf(tmp_path / "root/.pip/pip.conf", "[global]\nindex_url = https://c.test/s\n")
    assert configured()["UV_DEFAULT_INDEX"] == "https://c.test/s"
    pip_conf(tmp_path / "root/.config/pip/pip.conf", "[global]\nindex-url = https://d.test/s\n")
    assert configured()["UV_DEFAULT_INDEX"] == "https://d.test/s"
    pip_conf(tmp_path / "etc/pip.conf", "[install]\nindex-url = https://e.test/s\n")
    assert configured()["UV_DEFAULT_INDEX"] == "https://e.test/s"
    own = tmp_path / "own.conf"
    pip_conf(own, "[install]\nindex-url = https://f.test/s\n")
    assert configured(PIP_CONFIG_FILE=str(own))["UV_DEFAULT_INDEX"] == "https://f.test/s"
    variables = {"PIP_CONFIG_FILE": str(own), "PIP_INDEX_URL": "https://g.test/s"}
    assert configured(**variables)["UV_DEFAULT_INDEX"] == "https://g.test/s"
    assert "UV_DEFAULT_INDEX" not in configured(PIP_CONFIG_FILE=os.devnull)


def test_lists_are_split_and_what_is_not_there_is_left_out(
    configured: Callable[..., dict[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a,b"
    folder.mkdir()
    pip_conf(
        tmp_path / "etc/pip.conf",
        f"[global]\nfind-links =\n  {folder}\n  wheels\n  https://u:hush@a.test/p,q\n"
        "extra-index-url = https://u:hush@b.test/s file:///nowhere/s\n  https://c.test/s\n",
    )
    assert configured() == {
        "UV_FIND_LINKS": f"{tmp_path.as_uri()}/a%2Cb,https://u:hush@a.test/p%2Cq",
        "UV_INDEX": "https://u:hush@b.test/s https://c.test/s",
    }
    said = capsys.readouterr().out
    assert "wheels (" in said
    assert "file:///nowhere/s" in said
    assert "left out" in said
    assert "hush" not in said


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("etc/pip.conf", "index-url = x\n"),
        ("etc/uv/uv.toml", "index-url = x\n"),
        ("etc/uv/uv.toml", 'index = "https://a.test/s"\n'),
        ("etc/uv/uv.toml", '[[index]]\nname = "a"\n'),
    ],
)
def test_a_configuration_that_cannot_be_read_is_one_line(
    file: str, text: str, configured: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    pip_conf(tmp_path / file, text)
    with pytest.raises(pd_build.Fault, match=rf"{file}: .* cannot be read: .*"):
        configured()
