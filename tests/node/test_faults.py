"""A release is built while another serves, and made current; something goes wrong: the old one answers, the next run
goes on. Nothing asks the new one here, so what passed is made current again once a run is over.

make test-faults plays FAULTS=20 of them with a random SEED, which stands in each test's name; SEED=N plays the same
again. The new release differs from the one that serves by a patch. Each fault begins with what the one before left.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.bin.indexes import Index, index
from tests.node import wheels
from tests.node.asking import out, pids
from tests.node.deploying import Result, broken_off, deploy
from tests.node.found import PROXIES
from tests.node.node import Node
from tests.node.reach import within_reach
from tests.node.test_rollback import OTHER
from tests.node.waiting import until

COUNT = int(os.environ.get("FAULTS", "3"))
SEED = int(os.environ.get("SEED", "1"))
BUILD, SWITCH = "tests/node/build.py", "tests/node/switch.py"
ROOT, ROOM = "/opt/sglang-pd", "8g"
RELEASES, CURRENT = f"{ROOT}/releases", f"{ROOT}/current"
LONGEST = 120.0  # seconds that an answer, or a mount, may take on a machine that builds meanwhile

# Ends the pd-build that holds the lock of the releases, if one does.
END_BUILD = f"pid=$(cat {RELEASES}/.pd-build.lock) && grep -qs pd-build /proc/$pid/cmdline && kill -{{}} $pid"
# Ends a check of the finished release after so many seconds, if one runs then: what it does meanwhile says nothing.
END_CHECK = "sleep {}; pkill -{} -f '^/usr/bin/python3 .*/bin/pd-env (probe|probe-router|variables) '"
# In the place of mv: the shell that moves `current` is killed before or after it.
MV = f"""#!/bin/sh
for last; do :; done
[ "$last" = {CURRENT} ] || exec /usr/bin/mv "$@"
[ {{moved}} = no ] || /usr/bin/mv "$@"
kill -KILL $PPID
"""
# Asks through the router without end, with nothing of ours; one line an answer.
ASKER = """
import json, time, urllib.request
body = json.dumps({"model": "rehearsal", "max_tokens": 8, "temperature": 0,
                   "messages": [{"role": "user", "content": "What is 17*23? Answer with the number only."}]}).encode()
while True:
    request = urllib.request.Request("http://127.0.0.1:8000/v1/chat/completions", body,
                                     {"Content-Type": "application/json"})
    try:
        said = json.load(urllib.request.urlopen(request, timeout=100))["choices"][0]["message"]["content"]
        line = "right" if "391" in said else f"wrong: {said!r}"
    except Exception as error:
        line = f"no answer: {error!r}"
    print(line, flush=True)
    time.sleep(1)
"""


@dataclass(frozen=True)
class Seen:
    """What a look at the node finds; the lock of pd-build, which is always there, left out."""

    left: set[str]  # what lies among the releases
    current: str  # id
    answers: list[str]  # "right" each, as it should be


@dataclass
class Builder:
    """A node that serves, the release to be made beside it, and what making it needs."""

    node: Node
    index: Index  # of the test, for faults of an index; else packages come as the host's own configuration says
    old: str  # what `current` points to at first
    new: str  # id of the release to make
    need: int  # KiB that it takes at least beside the old one, its wheels in the cache
    lines: int = 10  # what a run says while pd-build works, about

    def run(self, *arguments: str, operations: str = BUILD, index: bool = False) -> Result:
        sources = {
            "package_index": self.index.url, "package_extra_indexes": json.dumps([self.index.url]),
            "package_find_links": f'["{ROOT}/locks"]',
        }  # fmt: skip
        return deploy(
            self.node, *(arguments or ("-y",)), operations=operations, minimum_free_disk_gb=0, **OTHER,
            **(sources if index else {}),
        )  # fmt: skip

    def broken_off(self, said: str, after: int, act: Callable[[Any], object], operations: str = BUILD) -> str:
        """How the run ended: late faults find nothing to end any more."""
        status = broken_off(
            self.node, f"Starting operation: {said}", act, after, operations, minimum_free_disk_gb=0, **OTHER
        )  # fmt: skip
        return f"the run ended with {status}"

    def look(self) -> Seen:
        parts = out(
            self.node, f"ls -A {RELEASES}; echo //; basename $(readlink {CURRENT}); echo //; cat /run/asker.log"
        ).split("//\n")  # fmt: skip
        left, current, answers = (part.split("\n") for part in parts)
        return Seen({*left} - {"", ".pd-build.lock"}, current[0], [line for line in answers if line])

    def whole(self) -> bool:
        checks = [
            f"{ROOT}/bin/pd-env check {RELEASES}/{self.new}/{part} --lock {ROOT}/locks/{self.new}{end}.txt"
            for part, end in (("env", ""), ("router", "-router"))
        ]
        return self.node.run(" && ".join([f"test -f {RELEASES}/{self.new}/release.json", *checks])).returncode == 0

    def remove(self) -> None:
        out(self.node, f"rm -rf {RELEASES}/{self.new} {RELEASES}/.{self.new}.*")

    def forget(self, *packages: str) -> None:
        """So that these are fetched anew."""
        out(self.node, f"{ROOT}/tools/uv/bin/uv --cache-dir {ROOT}/cache/uv cache clean -q {' '.join(packages)}")

    def size(self, kib: int | None = None) -> None:
        """Leave this much free below root_dir; None: as much as at first."""
        size = ROOM if kib is None else f"{int(out(self.node, f'df -k --output=used {ROOT} | tail -n 1')) + kib}k"
        out(self.node, f"mount -o remount,size={size} {ROOT}")


@pytest.fixture(scope="module")
def builder(served: Node) -> Iterator[Builder]:
    """root_dir as a copy on a file system of its own, whose size can change; asked through the router all the time."""
    before = pids(served)
    out(
        served,
        f"mkdir -p /run/room && mount -t tmpfs -o size={ROOM} tmpfs /run/room && cp -a {ROOT}/. /run/room/ && "
        f"mount --bind /run/room {ROOT} && umount /run/room",
    )
    try:
        served.run("cat >/run/asker.py", text=ASKER)
        out(
            served,
            f"systemd-run -q --unit asker -p UnsetEnvironment={shlex.quote(PROXIES)} "
            "-p StandardOutput=file:/run/asker.log python3 /run/asker.py",
        )
        with index(wheels.of(served, "sglang-router")) as source, within_reach(served, source.url):
            # what no release shares with the cache, byte code aside, is what another one needs
            own = f"find {CURRENT}/ -path '*/__pycache__' -prune -o -type f -links 1 -printf '%k\\n'"
            need = int(out(served, f"{own} | awk '{{sum += $1}} END {{print sum}}'"))
            builder = Builder(served, source, "", "", need)
            builder.old = builder.look().current
            operations = [operation["name"] for operation in builder.run("--dry").report["plan"]]
            (builder.new,) = [name.split()[-1] for name in operations if name.startswith("Runtime | Release ")]
            yield builder
        assert answered_since(builder, builder.look()) == {"right"}
        assert pids(served) == before, "the servers that were there at first"
    finally:
        served.run(f"systemctl stop asker; umount -l {ROOT}; rm -rf /run/room /run/asker.*")
    after = deploy(served, "-y")
    assert (after.status, after.changed) == (0, []), after.output


def answered_since(builder: Builder, then: Seen) -> set[str]:
    """Every answer so far, one at least since that look."""
    until(lambda: len(builder.look().answers) > len(then.answers), "it answers", LONGEST)
    return {*builder.look().answers}


# ---- faults while it is built: each says what it did, for the test's output


def pyinfra_is_interrupted(builder: Builder, dice: random.Random) -> str:
    at, number = dice.randrange(builder.lines), dice.choice([signal.SIGINT, signal.SIGKILL])
    ended = builder.broken_off("Runtime | Release ", at, lambda run: run.send_signal(number))
    return f"pyinfra got {number.name} {at} lines after the build began; {ended}"


def pd_build_is_ended(builder: Builder, dice: random.Random) -> str:
    at, name = dice.randrange(1, builder.lines), dice.choice(["INT", "TERM", "KILL"])
    ended = builder.broken_off("Runtime | Release ", at, lambda _: builder.node.run(END_BUILD.format(name)))
    return f"pd-build got SIG{name} {at} lines after it began; {ended}"


def the_disk_is_full(builder: Builder, dice: random.Random) -> str:
    free = dice.randrange(builder.need)
    builder.size(free)
    try:
        failed = builder.run()
    finally:
        builder.size()
    assert failed.status != 0, failed.output
    return f"{free} of {builder.need} KiB were free"


def the_index_fails(builder: Builder, dice: random.Random) -> str:
    packages = dice.sample(["sglang-router", "tqdm", "fastapi", "numpy", "pydantic", "transformers", "sglang"], 3)
    builder.forget(*packages)
    # at first every wheel comes from this index, more than a hundred
    builder.index.spared = dice.randrange(len(packages) if builder.index.authorizations else 60)
    builder.index.fault = fault = dice.choice(["503", "half", "wrong"])
    try:
        failed = builder.run(index=True)
    finally:
        builder.index.fault = ""
    assert failed.status != 0, failed.output
    assert {"503": "HTTP 503", "half": "end of file", "wrong": "hash mismatch"}[fault] in failed.output, failed.output
    return f"{fault} from the index, {', '.join(packages)} were wanted"


# ---- faults while it is checked and made current


def the_checks_are_ended(builder: Builder, dice: random.Random) -> str:
    at, moment, name = dice.randrange(3), round(dice.uniform(0, 4), 1), dice.choice(["INT", "TERM", "KILL"])
    act = END_CHECK.format(moment, name)
    ended = builder.broken_off("Activate | Current release ", at, lambda _: builder.node.run(act), SWITCH)
    return f"a check got SIG{name} {at} lines and {moment} s after they began; {ended}"


def pyinfra_is_interrupted_at_the_switch(builder: Builder, dice: random.Random) -> str:
    at, number = dice.randrange(4), dice.choice([signal.SIGINT, signal.SIGKILL])
    ended = builder.broken_off("Activate | Current release ", at, lambda run: run.send_signal(number), SWITCH)
    return f"pyinfra got {number.name} {at} lines after the checks began; {ended}"


def the_switch_is_killed(builder: Builder, dice: random.Random) -> str:
    """Of a release that has served: it is not checked again."""
    moved = dice.choice(["no", "yes"])
    out(builder.node, f"touch {RELEASES}/{builder.new}/served")
    builder.node.run("cat >/usr/local/bin/mv && chmod 755 /usr/local/bin/mv", text=MV.format(moved=moved))
    try:
        failed = builder.run(operations=SWITCH)
    finally:
        out(builder.node, "rm /usr/local/bin/mv")
    assert failed.status != 0, failed.output
    return f"the shell that moves `current` was killed, moved: {moved}"


OF_SWITCH = [the_switch_is_killed, the_checks_are_ended, pyinfra_is_interrupted_at_the_switch]
KINDS = [
    pd_build_is_ended, the_index_fails, the_switch_is_killed, the_disk_is_full, the_checks_are_ended,
    pyinfra_is_interrupted, pyinfra_is_interrupted_at_the_switch,
]  # fmt: skip
PLAYED = [(number, KINDS[number % len(KINDS)]) for number in range(COUNT)]


@pytest.mark.parametrize(
    ("number", "fault"), PLAYED, ids=[f"SEED={SEED}-{number}-{fault.__name__}" for number, fault in PLAYED]
)
def test_the_old_release_serves_and_the_next_run_goes_on(
    builder: Builder, number: int, fault: Callable[[Builder, random.Random], str]
) -> None:
    switching = fault in OF_SWITCH
    first = builder.look()
    others = first.left - {builder.new}
    if switching and builder.new not in first.left:
        assert builder.run().status == 0
    if not switching:
        builder.remove()
    what = fault(builder, random.Random(f"{SEED}-{number}"))
    print(what)
    after = builder.look()
    assert after.current == builder.old or (switching and after.current == builder.new), what
    assert {name for name in after.left - others - {builder.new} if not name.startswith(".")} == set(), what
    assert builder.new not in after.left or builder.whole(), f"a half release stands under its name: {what}"

    mended = builder.run(operations=SWITCH if switching else BUILD, index=fault is the_index_fails)
    assert mended.status == 0, f"{what}: {mended.output}"
    assert builder.whole(), what
    then = builder.look()
    assert then.left == {*others, builder.new}, what
    until(lambda: builder.look().current == builder.old, f"what passed is current: {what}", LONGEST)
    assert builder.node.run(f"test -L {CURRENT}.new").returncode != 0, what
    assert answered_since(builder, first) == {"right"}, what
    if switching:
        out(builder.node, f"rm -f {RELEASES}/{builder.new}/served")


def test_after_all_of_them_a_run_changes_nothing(builder: Builder) -> None:
    again = builder.run()
    assert (again.status, again.changed) == (0, []), again.output
