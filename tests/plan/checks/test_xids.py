"""Xids in every form that the driver prints, and what each of them means."""

from __future__ import annotations

import pytest

from tasks.plan.findings import Level
from tests.plan.judging import KERNEL, XID79, Changes, assert_verdict

WARNING, ERROR = Level.WARNING, Level.ERROR
XID13 = "[  90.1] NVRM: Xid (PCI:0000:03:00): 13, pid=812, name=python3, Graphics Exception"
XID_MIG = "[  90.1] NVRM: Xid (PCI:0000:03:00 GPU-I:05): 94, pid=7194, name=python3, Contained: SM (0x1). RST: No"
XID_BARE = "[  90.1] NVRM: Xid (0000:03:00): 31, Ch 0000000a"
XID_LINK = "[  90.1] NVRM: Xid (PCI:0000:03:00): 149, NETIR_LINK_EVT {} XC0 i0 Link 04 (0x1 0x2)"

# what is changed, settings, level, words of the line
CASES: list[tuple[Changes, dict[str, object], Level, str]] = [
    ({"kernel": f"{KERNEL}\n{XID79}"}, {}, ERROR, "1 Xid events of a failing GPU in this boot (79)"),
    ({"kernel": f"{KERNEL}\n{XID79.replace(':03:', ':08:')}"}, {"decode_tensor_parallel": 2}, WARNING, "no server gets it"),
    ({"kernel": f"{KERNEL}\n{XID13}"}, {}, WARNING, "1 Xid events in this boot (13)"),
    ({"kernel": f"{KERNEL}\n{XID13}"}, {"failing_xids": [13]}, ERROR, "(13)"),
    ({"kernel": f"{KERNEL}\n{XID_MIG}\n{XID_BARE}"}, {}, WARNING, "2 Xid events in this boot (31, 94)"),
    ({"kernel": f"{KERNEL}\n{XID13.replace(' 13,', ' 95,')}"}, {}, ERROR, "(95)"),
    ({"kernel": f"{KERNEL}\n{XID_LINK.format('Fatal   ')}"}, {}, ERROR, "1 Xid events of a failing GPU in this boot (149)"),
    ({"kernel": f"{KERNEL}\n{XID_LINK.format('Nonfatal')}"}, {}, WARNING, "1 Xid events in this boot (149)"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "data", "level", "words"), CASES)
def test_an_xid_is_judged_by_its_number_and_its_card(
    changes: Changes, data: dict[str, object], level: Level, words: str
) -> None:
    assert_verdict("gpu/xid/none", changes, data, level, words)
