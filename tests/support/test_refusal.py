"""What a user sees at the end of a refused run."""

import os
import subprocess
import sys
from pathlib import Path

from tests.plan.builders import REPOSITORY


def test_a_refused_run_ends_with_our_line(tmp_path: Path) -> None:
    ran = subprocess.run(
        [
            Path(sys.executable).with_name("pyinfra"),
            "-y",
            "@local",
            "deploy.py",
            "--data",
            "nonsense=1",
            "--data",
            f"report_dir={tmp_path}",
        ],
        cwd=REPOSITORY,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    said = [line.strip() for line in (ran.stdout + ran.stderr).splitlines() if line.strip()]
    assert ran.returncode == 1
    [refused] = [line for line in said if "refused:" in line]
    assert "unknown setting nonsense = 1" in refused
    end = next(line for line in said if "The run ends here." in line)
    assert "@local" in end and "nothing has changed" in end
    assert not [line for line in said if "refusal.py" in line or "Traceback" in line or "remaining" in line]
