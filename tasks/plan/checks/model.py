"""A model that the host brings must be there; one that is fetched must be pinned."""

from __future__ import annotations

from tasks.plan.checks.registry import Found, Verdict, check, error, healthy


@check(
    "model/files/there",
    "plan",
    judges="a folder that model_dir names holds a model (config.json)",
    source="tasks/model.py never changes a model that the host brings",
    settings=("model_dir",),
    ask="ls MODEL_DIR",
)
def there(found: Found) -> Verdict:
    plan = found.plan
    if not plan.brings_model:
        return healthy("the model is fetched where it is not there")
    if plan.model_file not in found.text_or_empty("files").splitlines():
        return error(
            f"model {plan.paths.model} holds no config.json",
            "put the model there, or set model_dir = None to have it fetched",
        )
    return healthy(f"{plan.model_file} is there")


@check(
    "model/revision/pinned",
    "plan",
    judges="a model that is fetched is pinned to a commit",
    source="what is fetched twice must be the same",
    settings=("model_revision",),
)
def pinned(found: Found) -> Verdict:
    plan = found.plan
    if plan.profile.source.hub and not plan.brings_model and plan.model_revision is None:
        return error(
            f"model {plan.profile.name} pins no revision of {plan.profile.source.hub}",
            "set model_revision to the commit that you want, or model_dir to a folder that holds the model",
        )
    return healthy(f"revision {plan.model_revision}" if plan.model_revision else "the model is not fetched")
