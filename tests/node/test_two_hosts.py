"""Two bare hosts serve together: prefill and router on one, decode on the other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.node import rehearse, together
from tests.node.node import REPOSITORY


@pytest.mark.serving
def test_two_bare_hosts_serve_together() -> None:
    """As make rehearse HOSTS=2."""
    if kept := [node.name for node in together.service(rehearse.NAME, 2).nodes if node.folder.exists()]:
        pytest.skip(f"{' and '.join(kept)} of a rehearsal are kept on this machine")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.node.rehearse", "--hosts", "2"], cwd=REPOSITORY,
        env={**os.environ, "REBUILD": "0", "KEEP": "0"}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
    summary = ran.stdout.splitlines()[-1]
    assert "rehearsal ok: rehearsal-1 (prefill, router), rehearsal-2 (decode): " in summary
    print(summary)
