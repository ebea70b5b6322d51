"""The report as it is written, and as a real browser shows it: nothing cut off, nothing asked of the network."""

import html
import json
import os
import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyinfra.context import ctx_host

from tasks.plan.bench.figures import compare
from tasks.plan.bench.goodput import Limits
from tasks.plan.findings import Finding, Level, silence
from tasks.plan.plan import Plan
from tasks.plan.proof.judgement import FRESH, NONE
from tasks.plan.report import service, status
from tasks.plan.report.data import build
from tasks.plan.report.service import Report
from tasks.plan.report.summary import Ending, HostRun
from tasks.plan.service.placement import write_collapse
from tasks.support import catalogue, render, report
from tests.plan.benches import at_rate, curve, failed, result
from tests.plan.builders import TWO_HOSTS, TWO_SOCKETS, catalogue_plan, fleet_plans, hardware
from tests.plan.proofs import pair, proof
from tests.plan.report.test_data import NOW
from tests.plan.report.test_service import PLANS, hosts, reported, run
from tests.plan.report.test_status import alert
from tests.plan.service.test_placement import NPS4

PLAN = catalogue_plan({}, hardware(TWO_SOCKETS, links={(0, 1): "PIX", (2, 3): "PIX", (4, 5): "PIX", (6, 7): "PIX"}))
HOSTILE = "<script>document.title = 'owned'</script><img src=x onerror=alert(1)>\"'&\x1b[31m</pre></style>"
LONG = "a" * 300
FINDINGS = (
    Finding("gpu/driver/match", Level.ERROR, "the module is 580, the library 590", ("NVRM version: 580",), "reboot"),
    Finding("gpu/xid", Level.INCOMPLETE, f"the kernel log could not be read: {LONG}", (LONG, "second line"), "be root"),
    Finding("host/acs", Level.WARNING, HOSTILE, (HOSTILE,), HOSTILE),
    *silence(
        [Finding("host/iommu", Level.WARNING, "the IOMMU translates")], {"host/iommu": f"measured, see {HOSTILE}"}
    ),
    Finding("host/clock", Level.HEALTHY, "the clock is synchronized"),
    write_collapse(tuple(w.placement for w in PLAN.workers if w.placement), PLAN.hardware),
)


def write(
    folder: Path, plan: Plan | None = PLAN, name: str = "gpu-1", measured: dict[str, Any] | None = None
) -> Path | None:
    with ctx_host.use(SimpleNamespace(data={"report_dir": str(folder)})):
        return report.write(name, plan, FINDINGS, measured, FRESH if measured else NONE)


def into(folder: Path | None) -> Plan:
    return catalogue_plan({"report_dir": str(folder) if folder else None}, PLAN.hardware)


# ---- files


def test_a_page_and_its_data_for_each_host(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "reports"
    page = write(folder, into(folder), measured=proof())
    assert page == folder / "gpu-1.html"
    assert sorted(path.name for path in folder.iterdir()) == ["gpu-1.html", "gpu-1.json"]
    data = json.loads((folder / "gpu-1.json").read_text())
    assert data["proof"] == proof()
    assert [finding["id"] for finding in data["findings"]][:2] == ["gpu/driver/match", "gpu/xid"]
    assert {oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {"0o644"}


def test_a_host_refused_before_its_plan_is_written_where_its_data_says(tmp_path: Path) -> None:
    page = write(tmp_path, plan=None)
    assert page is not None
    assert "the module is 580, the library 590" in page.read_text()


@pytest.mark.parametrize("wrong", [None, "", 5])
def test_no_report_where_none_is_wanted(wrong: object, tmp_path: Path) -> None:
    with ctx_host.use(SimpleNamespace(data={"report_dir": wrong})):
        assert report.write("gpu-1", None, (), None, NONE) is None
    assert write(tmp_path, into(None)) is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "file"), [("../../etc/x", "_._.._etc_x"), ("@fake/a b", "_fake_a_b"), ("::1", "__1"), (".", "_")]
)
def test_a_hosts_name_stays_in_the_folder(name: str, file: str, tmp_path: Path) -> None:
    assert write(tmp_path / "reports", into(tmp_path / "reports"), name) == tmp_path / "reports" / f"{file}.html"
    assert [path.name for path in tmp_path.iterdir()] == ["reports"]


def test_an_older_report_is_replaced_whole(tmp_path: Path) -> None:
    page = write(tmp_path, into(tmp_path))
    assert page is not None
    before = page.stat().st_ino
    held = page.open()  # a reader who opened the older one goes on reading it
    write(tmp_path, into(tmp_path), measured=proof())
    assert page.stat().st_ino != before
    assert "Not measured yet" in held.read()
    assert "Not measured yet" not in page.read_text()


# ---- a service


def test_a_service_has_a_page_with_the_last_reports_of_hosts_that_were_left_out(tmp_path: Path) -> None:
    where = fleet_plans(gpu_1={"report_dir": str(tmp_path)}, gpu_2={"report_dir": str(tmp_path)})
    for host in ("gpu-1", "gpu-2"):
        write(tmp_path, where[host], host)
        report.ended(host, run(host).as_data())
    report._written.pop("gpu-2")  # as in the next run, with --limit gpu-1
    page = report.of_service("main", hosts(TWO_HOSTS), {"gpu-1": run("gpu-1").as_data()})
    assert page == tmp_path / "main.service.html"
    found = json.loads(page.with_suffix(".json").read_text())
    assert [(one["host"], bool(one["run"]), bool(one["last_run"])) for one in found["hosts"]] == [
        ("gpu-1", True, True),
        ("gpu-2", False, True),
    ]
    assert 'href="gpu-2.html"' in page.read_text()


@pytest.mark.parametrize("left", ["", "[]", "{", '{"format": 1}'])
def test_what_is_no_report_of_today_is_none(left: str, tmp_path: Path) -> None:
    (tmp_path / "gpu-2.json").write_text(left)
    report._written.pop("gpu-2", None)
    assert report._report("gpu-2", tmp_path) is None


def test_a_run_that_wrote_nothing_about_a_service_writes_no_page_of_it(tmp_path: Path) -> None:
    for host in TWO_HOSTS:
        report._written.pop(host, None)
    assert report.of_service("main", hosts(TWO_HOSTS), {}) is None


# ---- the page as text


def page_of(
    host: str, plan: Plan | None, found: tuple[Finding, ...], measured: dict[str, Any] | None, state: str = FRESH
) -> str:
    return render.report(build(host, plan, found, measured, state, NOW)).decode()


def test_what_hosts_say_is_text_and_nothing_else() -> None:
    text = page_of(
        "gpu-1",
        PLAN,
        FINDINGS,
        proof([pair(0, 4, lane=HOSTILE, prefill=HOSTILE)], all_reduce={"status": HOSTILE, "reason": HOSTILE}),
    )
    assert "<script" not in text
    assert "<img" not in text
    assert text.count("</style>") == 1
    assert html.escape(HOSTILE, quote=False)[:30] in text


def test_the_page_asks_for_nothing_outside_itself() -> None:
    text = page_of("gpu-1", PLAN, FINDINGS, proof())
    assert re.findall(r'(?:src|href)="(?!data:)(?!#)[^"]*"|@import|url\((?!#)', text) == []


def test_the_page_of_a_service_links_to_its_hosts_and_nowhere_else() -> None:
    text = PAGES["well: Proven"]
    assert set(re.findall(r'(?:src|href)="(?!data:)(?!#)([^"]*)"|@import|url\((?!#)', text)) == {
        f"{host}.html" for host in PLANS
    }


# ---- in a browser

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr",
]  # fmt: skip
# Put into the test's copy of a page: what the browser made of it, told to the frame around it.
LOOK = """<script>
const cut = [...document.querySelectorAll('svg text')].filter(text => {
  const inner = text.getBoundingClientRect(), outer = text.ownerSVGElement.getBoundingClientRect();
  return inner.left < outer.left - 1 || inner.right > outer.right + 1
    || inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
});
const wide = [...document.querySelectorAll('main *')].filter(
  one => !one.closest('.scroll') && one.getBoundingClientRect().right > innerWidth + 1);
parent.found.push({
  width: innerWidth,
  scroll: document.documentElement.scrollWidth,
  title: document.title,
  cut: cut.map(text => text.textContent),
  wide: wide.map(one => one.outerHTML.slice(0, 80)),
  shown: document.body.innerText,  // without what the style hides
  lines: [...document.querySelectorAll('svg text')].map(text => text.textContent),
});
</script>"""
# Frames, since a window of Chromium is at least 500 pixels wide.
AROUND = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><script>
found = [];
onload = () => {
  const told = document.createElement('pre');
  told.id = 'found';
  told.textContent = JSON.stringify(found);
  document.body.append(told);
};
</script>"""


@dataclass(frozen=True)
class Seen:
    """What the browser made of one page at one width."""

    width: int
    scroll: int
    title: str
    cut: list[str]  # texts of the drawing that leave it
    wide: list[str]  # elements that run over the right edge
    shown: str
    lines: list[str]  # texts of the drawing


def chromium(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    profile = folder / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    command = ["chromium", *FLAGS, f"--user-data-dir={profile}", *arguments]
    environment = {**os.environ, "HOME": str(folder)}
    return subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )


def console(text: str) -> list[str]:
    return [line for line in text.splitlines() if ":CONSOLE" in line]


def benchmark(host: str, *layouts: str) -> str:
    """The page of a host that was measured in these layouts, in the first one twice, with failures."""
    before = curve(layouts[0], 0.9, "2026-11-01T00:00:00Z")
    results = [curve(layout, 1e4) for layout in layouts[1:]] + [curve(layouts[0], 1e4, "2026-11-30T09:00:00Z")]
    late = [at_rate(n, [(100, 10)] * (10 - n) + [(5000, 10)] * n) for n in (1, 2, 4, 8)]
    results = [one.model_copy(update={"passes": [*one.passes, *result(late).passes]}) for one in results]
    broken = before.model_copy(update={"passes": [*before.passes, *result([failed(reason=HOSTILE + LONG)]).passes]})
    every = [one.model_copy(update={"host": host}) for one in (broken, *results)]
    return render.serving(compare(every), Limits(450, 40)).decode()


RECORDED = Path(__file__).with_name("recorded") / "prometheus.jsonl"  # of a rehearsal


def status_page(host: str, *told: dict[str, Any]) -> str:
    """Of what Prometheus said, queries of the dashboards in their order."""
    shown = status.view(host, catalogue.dashboards(), status.read(told), seconds=900, step=15)
    return render.status(shown).decode()


def recorded() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDED.read_text().splitlines()]


def everywhere(label: str, values: list[tuple[float, str]]) -> list[dict[str, Any]]:
    """Prometheus answers each query with 20 series whose labels all say the same."""
    labels = dict.fromkeys(("instance", "gpu", "mountpoint", "status_code", "xid", "bus", "server", "streaming"), label)
    return [
        {"query": query, "now": 1.8e9, "result": [{"metric": labels, "values": values}] * 20}
        for query in status.queries(catalogue.dashboards())
    ] + [{"alerts": [alert(LONG, "page", host=HOSTILE), alert(HOSTILE, "warning")]}]


def service_page(name: str, found: tuple[Finding, ...], *runs: HostRun) -> str:
    """Of three hosts: one has all findings, one no report."""
    reports = {**reported(), "gpu-3": None}
    first = reports["gpu-1"]
    assert first
    data = build("gpu-1", PLANS["gpu-1"], found, proof([pair(0, 4)]), FRESH, NOW)
    reports["gpu-1"] = Report({**data, "run": first.data["run"]}, first.page)
    told = {one.name: one.as_data() for one in runs}
    return render.service(service.build(name, hosts(), reports, told, NOW), reports).decode()


UNEVEN = catalogue_plan(
    {"prefill_instances": 3, "prefill_tensor_parallel": 2, "decode_tensor_parallel": 2}, hardware([0] * 6 + [1] * 2)
)
SIXTEEN = catalogue_plan({"prefill_tensor_parallel": 8, "decode_tensor_parallel": 8}, hardware([0] * 8 + [1] * 8))
WHOLE = catalogue_plan({"layout": "data_parallel"}, hardware(TWO_SOCKETS))
PAGES = {  # by title
    "everything: Refused": page_of("everything", PLAN, FINDINGS, proof()),
    "before a plan: Refused": page_of("before a plan", None, FINDINGS, None, NONE),
    "uneven: Not measured": page_of("uneven", UNEVEN, FINDINGS[2:], None, NONE),
    "eight nodes: Stale": page_of(
        "eight nodes", catalogue_plan({}, hardware(list(range(8)), distances=NPS4)), (), proof(), "stale: boot"
    ),
    "three layouts: benchmark": benchmark("three layouts", "pd", "single", "data_parallel"),
    "one layout: benchmark": benchmark("one layout", "pd"),
    "rehearsal: status": status_page("rehearsal", *recorded()),
    "nothing yet: status": status_page("nothing yet", {"query": "up", "now": 1.8e9, "result": []}),
    "hostile: status": status_page(
        "hostile", *everywhere(HOSTILE + LONG, [(1.8e9 - 30 * n, "9e99") for n in (9, 2, 1)])
    ),
    "well: Proven": render.service(
        service.build("well", hosts(), reported(), {"gpu-1": run("gpu-1").as_data()}, NOW), reported()
    ).decode(),
    "main: Not done": service_page(
        "main",
        FINDINGS,
        run("gpu-1"),
        run("gpu-2", ending=Ending.FAILED, reasons=(HOSTILE,), restarts={"decode": LONG}),
    ),
    "whole servers: Not measured": page_of("whole servers", WHOLE, (), None, NONE),
    "sixteen GPUs: Proven": page_of("sixteen GPUs", SIXTEEN, (), proof([pair(i, i + 8) for i in range(8)], gpus=16)),
}
WIDTHS = (400, 1400)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Seen]:
    """Every page at every width, in one start of the browser."""
    folder = tmp_path_factory.mktemp("browser")
    frames = [
        f'<iframe width="{width}" height="1000" style="border: 0" srcdoc="{html.escape(text.replace("</body>", f"{LOOK}</body>"))}"></iframe>'
        for text in PAGES.values()
        for width in WIDTHS
    ]
    page = folder / "pages.html"
    page.write_text(AROUND + "".join(frames))
    ran = chromium(folder, "--dump-dom", page.as_uri())
    assert console(ran.stderr) == []
    told = re.search(r'<pre id="found">(.*?)</pre>', ran.stdout, re.S)
    assert told, ran.stdout[-500:]
    found = [Seen(**one) for one in json.loads(html.unescape(told[1]))]
    by_title = {(one.title, one.width): one for one in found}
    assert len(by_title) == len(PAGES) * len(WIDTHS), sorted(by_title)
    return by_title


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("title", sorted(PAGES))
def test_nothing_runs_over_the_edge(title: str, width: int, seen: dict[tuple[str, int], Seen]) -> None:
    one = seen[title, width]
    assert one.scroll <= width
    assert one.wide == []
    assert one.cut == []


@pytest.fixture
def everything(seen: dict[tuple[str, int], Seen]) -> Seen:
    return seen["everything: Refused", 1400]


def test_the_reader_sees_every_word(everything: Seen) -> None:
    words = re.sub(r"\s+", " ", everything.shown)
    for finding in FINDINGS:
        assert finding.id in words
        for text in (finding.line, finding.reason):
            assert re.sub(r"\s+", " ", text).replace("\x1b", "") in words.replace("\x1b", "").replace("\ufffd", "")
        if finding.level is not Level.HEALTHY:
            assert finding.advice.replace("\x1b", "") in words.replace("\x1b", "").replace("\ufffd", "")
    for one in (
        "Refused",
        "3 days ago",
        "prefill 0 → decode 4",
        "0.00067",
        "37.5",
        "NODE",
        "right values",
        PLAN.release.id,
    ):
        assert one in words, one
    assert [line for line in everything.lines if line.startswith("GPU 5")] == ["GPU 5 decode"]
    assert not re.search(r"\b(None|undefined|NaN|nan)\b", words)


def test_what_hosts_say_is_not_run(everything: Seen) -> None:
    assert everything.title == "everything: Refused"


def test_every_panel_shows_lines_or_says_why_there_are_none(seen: dict[tuple[str, int], Seen]) -> None:
    panels = [panel for one in catalogue.dashboards() for panel in one.panels]
    full, bare = seen["rehearsal: status", 1400], seen["nothing yet: status", 1400]
    drawn = [line for line in full.lines if any(line.startswith(panel.title) for panel in panels)]
    failures = [panel.nothing for panel in panels if panel.nothing.endswith(" yet") and panel.unit == "short"]
    assert re.findall("no data: (.*)", full.shown) == failures
    assert len(drawn) == len(panels) - len(failures)
    assert bare.shown.count("no data: ") == len(panels)
    for panel in panels:
        assert panel.title in bare.shown and any(panel.title in text for text in (*full.lines, full.shown))
    assert not re.search(r"\b(None|undefined|NaN|nan|inf)\b", full.shown)


def test_screenshot_and_print(tmp_path: Path) -> None:
    page, picture, printed = (tmp_path / name for name in ("page.html", "page.png", "page.pdf"))
    page.write_text(PAGES["everything: Refused"])
    ran = chromium(tmp_path, "--window-size=1400,2400", f"--screenshot={picture}", page.as_uri())
    assert console(ran.stderr) == []
    assert struct.unpack(">II", picture.read_bytes()[16:24]) == (1400, 2400)
    chromium(tmp_path, f"--print-to-pdf={printed}", "--no-pdf-header-footer", page.as_uri())
    assert printed.read_bytes().startswith(b"%PDF-")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed.read_bytes())) <= 6
