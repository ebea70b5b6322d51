"""A release is built while another serves, and something goes wrong: the old one answers, the next run goes on.

make test-faults plays FAULTS=20 of them with a random SEED, which stands in each test's name; SEED=N plays the same
again. The new release differs from the one that serves by the router's package, so that one build is short.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.bin.test_build import Index, index
from tests.node import wheels
from tests.node.asking import out, pids
from tests.node.deploying import Result, broken_off, deploy
from tests.node.node import Node
from tests.node.reach import within_reach
from tests.node.waiting import until

COUNT = int(os.environ.get("FAULTS", "3"))
SEED = int(os.environ.get("SEED", "1"))
BUILD = "tests/node/build.py"
ROOT, ROOM = "/opt/sglang-pd", "8g"
RELEASES = f"{ROOT}/releases"
LONGEST = 120.0  # seconds that an answer, or a mount, may take on a machine that builds meanwhile

# Ends the pd-build that holds the lock of the releases, if one does.
KILL = f"pid=$(cat {RELEASES}/.pd-build.lock) && grep -qs pd-build /proc/$pid/cmdline && kill -{{}} $pid"
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
    time.sleep(0.2)
"""


@dataclass
class Builder:
    """A node that serves, the index that the next release comes from, and what building needs."""

    node: Node
    index: Index
    need: int  # KiB that the new release takes beside the old one, its wheels in the cache
    new: str  # its id
    lines: int = 12  # what a run says while pd-build works, about

    @property
    def sources(self) -> dict[str, object]:
        """From the test's index alone, whatever the host's own configuration says."""
        return {
            "router": "smg", "minimum_free_disk_gb": 0, "package_index": self.index.url,
            "package_extra_indexes": json.dumps([self.index.url]), "package_find_links": f'["{ROOT}/locks"]',
        }  # fmt: skip

    def run(self, *arguments: str) -> Result:
        return deploy(self.node, *(arguments or ("-y",)), operations=BUILD, **self.sources)

    def broken_off(self, at: int, act: Callable[[Any], None]) -> None:
        broken_off(self.node, "Starting operation: Runtime | Release ", act, after=at, operations=BUILD, **self.sources)

    def left(self) -> list[str]:
        """Releases and what else lies among them; the lock of pd-build is always there."""
        return out(self.node, f"ls -A {RELEASES} | grep -v '^.pd-build.lock$'").splitlines()

    def whole(self) -> bool:
        checks = [
            f"{ROOT}/bin/pd-env check {RELEASES}/{self.new}/{part} --lock {ROOT}/locks/{self.new}{end}.txt"
            for part, end in (("env", ""), ("router", "-router"))
        ]
        return self.node.run(" && ".join([f"test -f {RELEASES}/{self.new}/release.json", *checks])).returncode == 0

    def forget(self, *packages: str) -> None:
        """So that these are fetched anew."""
        out(self.node, f"{ROOT}/tools/uv/bin/uv --cache-dir {ROOT}/cache/uv cache clean -q {' '.join(packages)}")

    def size(self, kib: int | None = None) -> None:
        """Leave this much free below root_dir; None: as much as at first."""
        size = ROOM if kib is None else f"{int(used(self.node)) + kib}k"
        out(self.node, f"mount -o remount,size={size} {ROOT}")


def used(node: Node) -> int:
    """KiB below root_dir."""
    return int(out(node, f"df -k --output=used {ROOT} | tail -n 1"))


@pytest.fixture(scope="module")
def builder(served: Node) -> Iterator[Builder]:
    """root_dir on a file system of its own, whose size can change; asked through the router all the time."""
    before = pids(served)
    out(
        served,
        f"mkdir -p /run/room && mount -t tmpfs -o size={ROOM} tmpfs /run/room && cp -a {ROOT}/. /run/room/ && "
        f"mount --bind /run/room {ROOT} && umount /run/room",
    )
    try:
        served.run("cat >/run/asker.py", text=ASKER)
        out(served, "systemd-run -q --unit asker -p StandardOutput=file:/run/asker.log python3 /run/asker.py")
        with index(wheels.of(served)) as source, within_reach(served, source.url):
            builder = Builder(served, source, 0, "")
            old = builder.left()
            first = builder.run()
            assert first.status == 0, first.output
            (builder.new,) = set(builder.left()) - set(old)
            assert builder.whole()
            full = used(served)
            remove(builder)
            builder.need = full - used(served)
            yield builder
        until(lambda: len(answers(served)) >= COUNT, "answers came", LONGEST)
        assert set(answers(served)) == {"right"}
        assert pids(served) == before, "the servers that were there at first"
    finally:
        served.run(f"systemctl stop asker; umount -l {ROOT}; rm -rf /run/room /run/asker.*")
    after = deploy(served, "-y")
    assert (after.status, after.changed) == (0, []), after.output


def answers(node: Node) -> list[str]:
    return out(node, "cat /run/asker.log").splitlines()


def remove(builder: Builder) -> None:
    out(builder.node, f"rm -rf {RELEASES}/{builder.new} {RELEASES}/.{builder.new}.*")


# ---- faults: each says what it did, for the test's output


def pyinfra_is_interrupted(builder: Builder, dice: random.Random) -> str:
    at, number = dice.randrange(builder.lines), dice.choice([signal.SIGINT, signal.SIGKILL])
    builder.broken_off(at, lambda run: run.send_signal(number))
    return f"pyinfra got {number.name} {at} lines after the build began"


def pd_build_is_ended(builder: Builder, dice: random.Random) -> str:
    at, name = dice.randrange(1, builder.lines), dice.choice(["INT", "TERM", "KILL"])
    builder.broken_off(at, lambda _: builder.node.run(KILL.format(name)))
    return f"pd-build got SIG{name} {at} lines after it began"


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
    packages = ["smg", *dice.sample(["tqdm", "fastapi", "numpy", "pydantic", "transformers", "sglang"], 2)]
    builder.forget(*packages)
    builder.index.spared = dice.randrange(len(packages))
    builder.index.fault = fault = dice.choice(["503", "half", "wrong"])
    try:
        failed = builder.run()
    finally:
        builder.index.fault = ""
    assert failed.status != 0, failed.output
    assert {"503": "HTTP 503", "half": "end of file", "wrong": "hash mismatch"}[fault] in failed.output, failed.output
    return f"{fault} from the index, {', '.join(packages)} were wanted"


KINDS = [pd_build_is_ended, the_disk_is_full, the_index_fails, pyinfra_is_interrupted]
PLAYED = [(number, KINDS[number % len(KINDS)]) for number in range(COUNT)]


@pytest.mark.parametrize(
    ("number", "fault"), PLAYED, ids=[f"SEED={SEED}-{number}-{fault.__name__}" for number, fault in PLAYED]
)
def test_the_old_release_serves_and_the_next_run_goes_on(
    builder: Builder, number: int, fault: Callable[[Builder, random.Random], str]
) -> None:
    held, others = out(builder.node, f"readlink {ROOT}/current"), builder.left()
    seen = len(answers(builder.node))
    what = fault(builder, random.Random(f"{SEED}-{number}"))
    print(what)
    assert out(builder.node, f"readlink {ROOT}/current") == held
    half = [name for name in builder.left() if name not in (*others, builder.new) and not name.startswith(".")]
    assert half == [], what
    assert builder.new not in builder.left() or builder.whole(), f"a half release stands under its name: {what}"

    mended = builder.run()
    assert mended.status == 0, f"{what}: {mended.output}"
    assert builder.whole(), what
    assert set(builder.left()) == {*others, builder.new}, what
    again = builder.run()
    assert (again.status, again.changed) == (0, []), f"{what}: {again.output}"
    until(lambda: len(answers(builder.node)) > seen, "the old release answers", LONGEST)
    assert set(answers(builder.node)) == {"right"}, what
    remove(builder)
