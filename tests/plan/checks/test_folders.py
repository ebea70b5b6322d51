"""Folders that root may make, trust and give away, and those that it may not."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.facts.planned import Planned
from tasks.plan.findings import Finding, Level
from tasks.plan.host import answers as reading
from tasks.plan.phases.system import directories
from tests.plan.builders import settings
from tests.plan.judging import CHECKS, found, places

CHECK = "host/folders/ours"
OURS = (
    "/opt/sglang-pd directory 755 root root",
    "/opt/sglang-pd/bin directory 755 root root",
    "/opt/sglang-pd/locks directory 755 root root",
    "/opt/sglang-pd/releases directory 755 root root",
    "/etc/sglang-pd directory 750 root sglang",
    "/var/lib/sglang-pd directory 750 sglang sglang",
    "/var/lib/sglang-pd/models directory 750 sglang sglang",
    "/var/lib/sglang-pd/cache directory 750 sglang sglang",
    "filled",
)


def judged(*parts: str, **data: object) -> Finding:
    """The check's finding where these parts are as they are told, and every other is not there."""
    host = found(wanted=settings(**data))
    assert host.plan is not None
    return CHECKS[CHECK].finding(found(places(host.plan, *parts), wanted=settings(**data)))  # type: ignore[arg-type]


def test_a_bare_host_and_one_that_was_deployed() -> None:
    assert judged().level is Level.HEALTHY
    assert judged(*OURS).level is Level.HEALTHY, judged(*OURS)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("/var/lib/sglang-pd/cache link 755 root root /etc", "/var/lib/sglang-pd/cache is a link to /etc, a folder belongs there"),
        ("/var/lib/sglang-pd/models link 755 root root /", "/var/lib/sglang-pd/models is a link to /, a folder"),
        ("/var/lib/sglang-pd link 755 root root /data/pd", "/var/lib/sglang-pd is a link to /data/pd, a folder"),
        ("/opt/sglang-pd/releases link 755 root root /data/releases", "is a link to /data/releases"),
        ("/etc/sglang-pd link    /nowhere", "/etc/sglang-pd is a link to /nowhere"),
        ("/var/lib/sglang-pd/cache other 644 sglang sglang", "/var/lib/sglang-pd/cache is no folder"),
        ("/var/lib/sglang-pd/cache directory 755 root root", "belongs to root:root, not to sglang:sglang"),
        ("/var/lib/sglang-pd directory 755 root root", "/var/lib/sglang-pd belongs to root:root, not to sglang:sglang"),
        ("/var/lib/sglang-pd directory 750 bob sglang", "/var/lib/sglang-pd belongs to bob:sglang"),
        ("/opt/sglang-pd directory 755 bob bob", "/opt/sglang-pd belongs to bob:bob, not to root:root"),
        ("/opt/sglang-pd/bin directory 755 sglang sglang", "/opt/sglang-pd/bin belongs to sglang:sglang"),
        ("/etc/sglang-pd directory 750 root bob", "/etc/sglang-pd belongs to root:bob, not to root:sglang"),
        ("/opt directory 777 root root", "/opt belongs to root:root with mode 777: whoever may write there"),
        ("/opt directory 2775 root staff", "/opt belongs to root:staff with mode 2775"),
        ("/var/lib directory 755 bob bob", "/var/lib belongs to bob:bob with mode 755"),
        ("/var/lib link 755 bob bob /home/bob", "/var/lib belongs to bob:bob"),
    ],
)  # fmt: skip
def test_what_root_may_not_trust_is_refused(part: str, words: str) -> None:
    said = judged(*(one for one in OURS if not one.startswith(f"{part.split()[0]} ")), part)
    assert said.level is Level.ERROR, said
    assert words in said.sentence
    assert "\n" not in said.sentence


def test_an_empty_folder_of_roots_is_given_to_the_service_user() -> None:
    """A disk that was mounted for it."""
    mounted = "/var/lib/sglang-pd directory 755 root root"
    assert judged(mounted).level is Level.HEALTHY
    assert judged(mounted, "filled").level is Level.ERROR


def test_folders_above_that_only_root_changes_may_be_links() -> None:
    assert judged("/var/lib link 755 root root /data/lib").level is Level.HEALTHY
    assert judged("/opt directory 775 root root").level is Level.HEALTHY


def test_the_groups_name_may_be_another_one() -> None:
    user = {"user": "sglang:x:998:100::/var/lib/sglang-pd:/usr/sbin/nologin\nusers"}
    host = found(user)
    assert host.plan is not None
    made = replace(host.plan, system=reading.read_system(host.answers))
    parts = [part.replace(" sglang sglang", " sglang users").replace("root sglang", "root users") for part in OURS]
    said = CHECKS[CHECK].finding(found({**user, **places(made, *parts)}, made=made))  # type: ignore[dict-item]
    assert said.level is Level.HEALTHY, said
    assert {one.group for one in directories(made)} == {"root", "users"}


def test_the_shell_tells_what_is_there(tmp_path: Path) -> None:
    """Every part of a path, links by their target, and whether anything lies in it."""
    (tmp_path / "real").mkdir(mode=0o750)
    (tmp_path / "link").symlink_to("real\n/etc\tfile")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "filled").mkdir()
    (tmp_path / "filled/x").write_text("")
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted/lost+found").mkdir()
    asked = [str(tmp_path / name) for name in ("real", "link", "dangling", "filled", "mounted", "absent/below")]
    fact = Planned()
    command = fact.command("/x", "/y", "/z", [], str(tmp_path), "9.9", "", places=asked)
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    told = {name.removeprefix("place "): answer.text for name, answer in fact.process(ran.stdout.splitlines()).items()}
    rows = {Path(path).name: told[path].splitlines() for path in asked}
    who = f"{tmp_path.owner()}\t{tmp_path.group()}"
    assert rows["real"][-1] == f"directory\t750\t{who}\t{tmp_path}/real\t"
    assert rows["real"][0].split("\t")[4] == f"/{tmp_path.parts[1]}"
    assert rows["link"][-1] == f"link\t\t\t\t{tmp_path}/link\treal /etc file"
    assert rows["dangling"][-1] == f"link\t\t\t\t{tmp_path}/dangling\tnowhere"
    assert rows["filled"][-1] == "filled"
    assert rows["mounted"][-1] == f"directory\t755\t{who}\t{tmp_path}/mounted\t"
    assert rows["below"] == rows["real"][:-1]
