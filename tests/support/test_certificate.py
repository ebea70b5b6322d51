"""The router's certificate and key: read on this machine, refused in one line, never shown."""

from pathlib import Path

import pytest

from tasks.plan.errors import PlanError
from tasks.support import certificate
from tests import certificates
from tests.plan.builders import settings


def joined(chain: Path, key: Path) -> bytes | None:
    return certificate.joined(settings(router_tls_certificate=str(chain), router_tls_key=str(key)))


def test_both_become_one_file(tmp_path: Path) -> None:
    chain, key = certificates.made(tmp_path, "own")
    made = joined(chain, key)
    assert made is not None
    assert made.count(b"BEGIN CERTIFICATE") == made.count(b"BEGIN PRIVATE KEY") == 1
    assert joined(chain, key) == made


def test_nothing_is_read_without_tls_nor_what_lies_on_the_host() -> None:
    assert certificate.joined(settings()) is None
    on_host = {"router_tls_certificate": "/etc/x/a.pem", "router_tls_key": "/etc/x/b.pem", "router_tls_on_host": True}
    assert certificate.joined(settings(**on_host)) is None


def test_what_does_not_belong_together_is_one_line_without_the_key(tmp_path: Path) -> None:
    chain, key = certificates.made(tmp_path, "own")
    _, other = certificates.made(tmp_path, "other")
    empty = tmp_path / "empty"
    empty.touch()
    for one, two in ((chain, other), (key, chain), (empty, key), (chain, empty)):
        with pytest.raises(PlanError) as refused:
            joined(one, two)
        (line,) = refused.value.lines
        assert "are no certificate with its key" in line and "\n" not in line
        assert key.read_text().splitlines()[1] not in line


def test_a_file_that_cannot_be_read_is_named_with_its_setting(tmp_path: Path) -> None:
    chain, _ = certificates.made(tmp_path, "own")
    with pytest.raises(PlanError, match=r"setting router_tls_key = '.*/none' cannot be read on this machine: No such"):
        joined(chain, tmp_path / "none")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"router_tls_certificate": "a.pem"}, "setting router_tls_key is missing: TLS needs certificate and key"),
        ({"router_tls_key": "a.pem"}, "setting router_tls_certificate is missing"),
        ({"router_tls_on_host": True}, "router_tls_on_host = True names no file"),
        (
            {"router_tls_on_host": True, "router_tls_certificate": "a.pem", "router_tls_key": "/b.pem"},
            "setting router_tls_certificate = 'a.pem': with router_tls_on_host it is a path on the host",
        ),
    ],
)
def test_settings_that_contradict_each_other(changes: dict[str, object], line: str) -> None:
    with pytest.raises(PlanError) as refused:
        settings(**changes)
    (said,) = refused.value.lines
    assert line in said
