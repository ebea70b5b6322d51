"""What pd-verify is told."""

from __future__ import annotations

import json

from tasks.plan.phases.verify import verify_config
from tests.plan.builders import TWO_SOCKETS, catalogue_plan, hardware


def test_a_diff_counts_the_questions_that_are_asked() -> None:
    own = [{"name": name, "prompt": "Say yes.", "expect": "yes"} for name in ("first", "second")]
    for more in ({}, {"questions": own}):
        config = verify_config(catalogue_plan(more, hardware(TWO_SOCKETS)))
        assert config.gist == f"{len(json.loads(config.content)['golden'])} questions with known answers"
