"""Two bare hosts serve together, then one of them dies and is rebuilt: same name, new host key, empty disk."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.node import rehearse, together
from tests.node.node import REPOSITORY


@pytest.mark.serving
def test_two_bare_hosts_serve_together_and_one_that_was_rebuilt_joins_with_one_run() -> None:
    """As make rehearse HOSTS=2 REBUILD=1."""
    if kept := [node.name for node in together.service(rehearse.NAME, 2).nodes if node.folder.exists()]:
        pytest.skip(f"{' and '.join(kept)} of a rehearsal are kept on this machine")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.node.rehearse", "--hosts", "2"], cwd=REPOSITORY,
        env={**os.environ, "REBUILD": "1", "KEEP": "0"}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
    summary = ran.stdout.splitlines()[-1]
    assert "rehearsal ok: rehearsal-1 (prefill, router), rehearsal-2 (decode): " in summary
    assert "rebuilt, " in summary
    print(summary)
