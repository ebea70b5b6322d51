"""Back to the release that served before, held there, and let go: two releases that differ by one patch."""

from __future__ import annotations

import json
from typing import Any

from tests.node.asking import CONFIG, UNITS, answers, logged, out, pids
from tests.node.deploying import deploy, provisioned
from tests.node.node import Node

ROOT = "/opt/sglang-pd"
PATCH, PATCHED_FILE = "length-said", "sglang/srt/managers/utils.py"
OTHER = {"patches": f'["cpu-engine", "{PATCH}"]', "patch_dir": "tests/node/patches"}  # all that they differ in


def link(node: Node, name: str) -> str:
    return out(node, f"basename $(readlink {ROOT}/{name})")


def releases(node: Node) -> set[str]:
    return set(out(node, f"ls -A {ROOT}/releases").split()) - {".pd-build.lock"}


def patched(node: Node) -> tuple[str, bool, list[bool]]:
    """The file's sha256 in the current release, whether placed.json there names the patch, and whether each worker
    said at its start that the patch is in place, and said a length for the questions that it was asked."""
    site = f"{ROOT}/current/env/lib/python3.11/site-packages"
    placed: dict[str, Any] = json.loads(out(node, f"cat {site}/pd_overlay_hook/placed.json"))
    said = [
        f"active: {PATCH}: {PATCHED_FILE} is ours" in log
        and any(f"{PATCH}: " in line for line in log if "tokens" in line)
        for log in (logged(node, unit) for unit in UNITS[:2])
    ]
    return out(node, f"sha256sum <{site}/{PATCHED_FILE}"), PATCH in json.dumps(placed), said


def test_back_to_what_served_and_pinned_until_it_is_let_go(served: Node) -> None:
    first, without = link(served, "current"), patched(served)
    assert without[1:] == (False, [False, False])
    # stopped at once: how servers drain is seen on the way back
    out(served, f"systemctl kill -s KILL {' '.join(UNITS[:2])}; systemctl stop {' '.join(UNITS[:2])}")
    assert provisioned(served, **OTHER).changed
    second = link(served, "current")
    assert second != first and link(served, "previous") == first
    assert releases(served) == {first, second}
    assert patched(served)[0] != without[0] and patched(served)[1:] == (True, [True, True])

    before = pids(served)
    dry = deploy(served, "--dry", rollback=True, **OTHER)
    assert (
        f"Activate | Current release is {first}" in dry.planned and f"Activate | Pin {CONFIG}/pin.json" in dry.planned
    )
    assert f"patch {PATCH}: taken out, SGLang's own is back" in dry.output
    assert link(served, "current") == second and pids(served) == before, "a dry run moves nothing"

    back = deploy(served, "-y", rollback=True, rollback_reason="answers were slow", **OTHER)
    assert back.status == 0, back.output
    assert link(served, "current") == first and link(served, "previous") == second
    assert answers(served) and patched(served) == without
    assert not any(name.startswith("Runtime") for name in back.changed), "it was there: nothing is built"
    pin = json.loads(out(served, f"cat {CONFIG}/pin.json"))
    assert (pin["release"], pin["instead_of"], pin["why"]) == (first, second, "answers were slow")
    assert "@" in pin["by"] and pin["at"].endswith("Z")

    after = pids(served)
    for later in ({}, {"rollback": True}):
        left = deploy(served, "-y", **later, **OTHER)
        assert left.changed == [], left.output
        assert f"pinned to {first} by {pin['by']}" in left.output and "--data unpin=True" in left.output
        assert link(served, "current") == first

    further = deploy(served, "-y", rollback=True, rollback_reason="and wrong", **OTHER)
    assert further.changed == [f"Activate | Pin {CONFIG}/pin.json", "Verify | Kept as what passed last"]
    assert json.loads(out(served, f"cat {CONFIG}/pin.json")) == {**pin, "why": "answers were slow; and wrong"}

    dry = deploy(served, "--dry", unpin=True, **OTHER)
    assert {"Activate | No pin", f"Activate | Current release is {second}"} <= set(dry.planned), dry.output

    named = deploy(served, "-y")  # the settings name the release that the host is pinned to
    assert named.changed == ["Activate | No pin", "Verify | Kept as what passed last"], named.output
    assert link(served, "current") == first and pids(served) == after

    dry = deploy(served, "--dry", rollback=True)  # to a patch that these settings know nothing of: the host keeps it
    assert f"Activate | Current release is {second}" in dry.planned
    assert f"patch {PATCH}: placed (changes {PATCHED_FILE})" in dry.output
    assert not any(name.startswith("Runtime") for name in dry.planned), dry.output


def test_older_releases_go_but_none_from_which_a_process_runs(served: Node) -> None:
    there = releases(served)
    for old in ("old", "used"):
        out(
            served,
            f"mkdir {ROOT}/releases/{old} && echo {{}} >{ROOT}/releases/{old}/release.json && touch {ROOT}/locks/{old}.txt "
            f"&& cp /bin/sleep {ROOT}/releases/{old}/",
        )
    out(served, f"mkdir {ROOT}/releases/.gone.building")
    out(served, f"systemd-run -q --unit pd-test-used {ROOT}/releases/used/sleep 600")
    try:
        result = deploy(served, "-y")
        assert result.changed == ["Retire | No older releases"], result.output
        assert f"{ROOT}/releases/used stays: a process still runs from it" in result.output
        assert releases(served) == there | {"used"}
        assert served.run(f"test -e {ROOT}/locks/old.txt").returncode != 0
    finally:
        out(served, "systemctl stop pd-test-used")
    assert deploy(served, "-y").changed == ["Retire | No older releases"]
    assert releases(served) == there
    assert deploy(served, "-y").changed == []


def test_with_nothing_to_go_back_to_a_rollback_is_one_line(served: Node) -> None:
    previous = out(served, f"readlink {ROOT}/previous")
    out(served, f"rm {ROOT}/previous")
    try:
        refused = deploy(served, "-y", rollback=True)
        assert refused.status != 0
        assert "refused: setting rollback = True: no other release has served here before" in refused.output
        assert "Traceback" not in refused.output
    finally:
        out(served, f"ln -s {previous} {ROOT}/previous")
    both = deploy(served, "-y", rollback=True, unpin=True)
    assert both.status != 0 and "settings rollback and unpin are both True" in both.output
