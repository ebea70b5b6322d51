"""What earlier runs left: known by its whole name, in the folder where it belongs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tasks.plan.phases.retire import leftovers
from tasks.plan.release.history import History
from tests.plan.builders import TWO_SOCKETS, hardware, plan, settings

GONE, BEFORE = "sglang-0.4.0-cpu-py3.11-0123456789", "sglang-0.5.20-cpu-py3.11-aaaaaaaaaa"
PLAN = replace(plan(settings(), hardware(TWO_SOCKETS)), history=History(previous=BEFORE, built=(BEFORE,)))
ROOT, CONFIG, UNITS, CACHE = "/opt/sglang-pd", "/etc/sglang-pd", "/etc/systemd/system", "/var/lib/sglang-pd/cache"


@pytest.mark.parametrize(
    "path",
    [
        f"{CONFIG}/decode.sh.new", f"{CONFIG}/prefill-1.sh", f"{CONFIG}/server.env", f"{ROOT}/current.new",
        f"{ROOT}/bin/pd-gate.new", f"{UNITS}/sglang-pd-decode.service.new", f"{ROOT}/locks/{GONE}.txt",
        f"{ROOT}/locks/{GONE}.release.json", f"{ROOT}/locks/{GONE}.json.new",
        f"{CONFIG}/api-key.env", f"{CONFIG}/.decode.sh.0123456789abcdef", f"{UNITS}/.sglang-pd.target.0123456789abcdef",
        f"{UNITS}/sglang-pd.target.new",
    ],
)  # fmt: skip
def test_files_of_root_that_nothing_needs(path: str) -> None:
    assert leftovers(PLAN, [path]) == ([path], [])


def test_the_cache_of_a_release_that_is_gone_is_its_owners_to_remove() -> None:
    assert leftovers(PLAN, [f"{CACHE}/{GONE}"]) == ([], [f"{CACHE}/{GONE}"])


@pytest.mark.parametrize(
    "path",
    [
        f"{CONFIG}/decode.sh", f"{CONFIG}/router.env", f"{CONFIG}/api-key", f"{CONFIG}/notes.sh", f"{CONFIG}/my.env",
        f"{ROOT}/current", f"{ROOT}/locks/uv.txt", f"{ROOT}/locks/{BEFORE}.txt", f"{ROOT}/locks/{PLAN.release.id}.json",
        f"{ROOT}/locks/{GONE}.notes", f"{UNITS}/other.service.new", f"{UNITS}/sglang-pd-decode.service", f"{CACHE}/huggingface",
        f"{CACHE}/{BEFORE}", f"{CACHE}/{GONE}.old", f"{CACHE}/x.new", f"{ROOT}/prefill-1.sh", f"{CONFIG}/a b.new", f"{CONFIG}/.new",
        f"{CONFIG}/.notes", f"{CONFIG}/.vimrc.swp", f"{UNITS}/.other.service.0123456789abcdef",
        "x.new", "/x.new", "/home/alice/x.new",
    ],
)  # fmt: skip
def test_what_somebody_needs_or_may_need_stays(path: str) -> None:
    assert leftovers(PLAN, [path]) == ([], [])
