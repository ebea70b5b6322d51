"""Environment variables of the servers that no installed code reads."""

from __future__ import annotations

from tasks.plan.checks.registry import Found, Later, Unreadable, Verdict, check, error, healthy
from tasks.plan.errors import nearest
from tasks.plan.host.answers import NOT_BUILT


@check(
    "service/environment/known",
    "plan",
    judges="every SGLANG_* variable of the servers stands in the release's source or belongs to one of its patches; "
    "judged once it is built",
    source="SGLang ignores a misspelt variable without a word",
    settings=("worker_environment", "prefill_environment", "decode_environment", "server_environment"),
    ask="grep -r SGLANG_ SITE_PACKAGES/sglang",
)
def known(found: Found) -> Verdict:
    wanted = found.plan.judged_variables
    if not wanted:
        return healthy("no SGLANG_ variable beside those that a patch reads")
    answer = found.answers.get("variables")
    if answer is not None and answer.status == NOT_BUILT:
        raise Later(f"{', '.join(wanted)}: judged once the release is built")
    names = found.text("variables").split()
    if not any(name.startswith("SGLANG_") for name in names):
        raise Unreadable("no variable in it", *names[:3])
    unread = [name for name in wanted if name not in names]
    if unread:
        return error(
            f"no installed code reads {', '.join(unread)}",
            "correct the name, take it out of the settings or the model's profile, or name the patch that reads it in "
            f"setting patches.{nearest(unread[0], names)}",
            *(f"{name}: not in {len(names)} names of the source" for name in unread),
        )
    return healthy(f"{', '.join(wanted)} stand in the source ({len(names)} names)")
