"""What a host brings along must be readable for the user that the servers run as: facts are asked as root."""

from __future__ import annotations

from tasks.plan.checks.registry import Found, Verdict, check, error, healthy

# What the service user was kept from -> what is said of it. {0}: path or module; {1}: mode and owner, or interpreter.
_SAID = {
    "enter": "it may not enter {0} ({1})",
    "read": "it may not read {0} ({1})",
    "follow": "it cannot get to where {0} leads ({1})",
    "run": "it cannot run {0}",
    "import": "{1} finds no {0} for it",
}


@check(
    "host/user/reads",
    "plan",
    judges="the service user can read what the host brings: model_dir, existing_python, existing_paths",
    source="tried: a model in a folder of another user's was found by root, and the new servers failed after the old "
    "ones had been stopped",
    settings=(
        "service_user",
        "unit_options",
        "model_dir",
        "existing_python",
        "existing_router_python",
        "existing_paths",
    ),
    ask="systemd-run --pipe -p User=SERVICE_USER -p ProtectHome=yes -p PrivateTmp=yes ls MODEL_DIR",
)
def readable(found: Found) -> Verdict:
    plan, user = found.plan, found.settings.service_user
    if not plan.brought and not plan.brought_pythons:
        return healthy("the host brings nothing: all that servers read, this playbook places")
    lines = [line.split("\t") for line in found.text_or_empty("readable").splitlines()]
    # what an interpreter prints by itself when it starts is none of ours
    said = [_SAID[what].format(*rest, "") for what, *rest in lines if what in _SAID and rest]
    if said:
        return error(
            f"servers run as {user}: {'; '.join(dict.fromkeys(said))}",
            "open it to that user (chmod o+rx, setfacl), or name another one in service_user; what a link reaches in "
            "/home or /root, a unit sees with ProtectHome in unit_options",
        )
    read = [*plan.brought, *(python for python, *_ in plan.brought_pythons)]
    return healthy(f"{user} reads {', '.join(read)}")
