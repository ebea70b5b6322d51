"""A model that the host brings must be there and be the one of the profile; it must fit the cards."""

from __future__ import annotations

from tasks.plan.checks.registry import Found, Verdict, check, error, healthy, warning
from tasks.plan.model.memory import LEAST_TOKENS, Fit
from tasks.plan.settings.roles import ROLES

HIGHEST_FRACTION = 0.95  # what is beyond it is needed for activations and graphs; a rule of thumb


@check(
    "model/files/there",
    "plan",
    judges="the folder that model_dir names is there, service_user may enter it, it holds config.json, weights, and "
    "each file that its index names",
    source="a server would stop at what is missing, after minutes",
    settings=("model_dir", "service_user"),
    ask="ls MODEL_DIR",
    never_silenced=True,
)
def there(found: Found) -> Verdict:
    plan = found.plan
    if not plan.brings_model:
        return healthy("the model is fetched where it is not there")
    return healthy(f"{plan.paths.model} holds {plan.profile.size_gb:.3g} GB of weights")


@check(
    "model/profile/agrees",
    "plan",
    judges="the profile does not contradict config.json (heads, KV heads, layers, context); what it leaves out can be "
    "read from there",
    source="docs/models.md",
    settings=("model", "model_dir", "model_profiles"),
    ask="cat MODEL_DIR/config.json",
    never_silenced=True,
)
def agrees(found: Found) -> Verdict:
    plan = found.plan
    if not plan.model_told:
        return healthy(f"profile {plan.profile.name} as it is: there is no config.json to compare with yet")
    read = f"; read from it: {', '.join(plan.derived)}" if plan.derived else ""
    return healthy(f"config.json: {plan.model_told}{read}", plan.model_told)


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


@check(
    "model/memory/fits",
    "plan",
    judges=f"each server's cards hold its share of the weights and a KV cache of {LEAST_TOKENS} tokens in "
    "mem_fraction; where the cache holds fewer tokens than one request may have (context_length), a warning",
    source="SGLang 0.5.23: mem_fraction of the free memory, less the weights, is the KV cache; 1.6 GB gone before, "
    "measured on H200",
    settings=tuple(f"{role}_{name}" for role in ROLES for name in ("mem_fraction", "tensor_parallel")),
    ask="nvidia-smi --query-gpu=index,memory.total --format=csv",
    of_gpu=True,
)
def fits(found: Found) -> Verdict:
    plan, context = found.plan, found.plan.context_length
    every = plan.fits
    said = [f"{name}: {_told(one)}" for name, one in every.items()]
    small = {name: one for name, one in every.items() if one.tokens < LEAST_TOKENS}
    if small:
        name, one = next(iter(small.items()))
        role = next(worker.role for worker in plan.workers if worker.name == name)
        return error(
            f"{plan.profile.name} does not fit {' and '.join(small)}: {_told(one)}",
            _advice(role, one),
            *said,
        )
    short = {name: one for name, one in every.items() if one.tokens < context}
    if short:
        name, one = min(short.items(), key=lambda item: item[1].tokens)
        role = next(worker.role for worker in plan.workers if worker.name == name)
        least = " at least" if len(short) > 1 else ""
        return warning(
            f"the KV cache of {' and '.join(short)} holds {one.tokens:,} tokens{least}, "
            f"one request may have {context:,}",
            f"set context_length = {one.tokens // 1024 * 1024 or one.tokens}, raise {role}_mem_fraction = "
            f"{one.fraction:g}, or share the model over more GPUs ({role}_tensor_parallel)",
            *said,
        )
    return healthy("; ".join(said), *said)


def _told(one: Fit) -> str:
    return (
        f"{one.weights:.1f} GB of weights on each card of {one.card:.1f} GB, {one.budget:.1f} GB for weights and KV "
        f"cache (mem_fraction {one.fraction:g}), {one.tokens:,} tokens of KV cache"
    )


def _advice(role: str, one: Fit) -> str:
    more = f"share it over more GPUs ({role}_tensor_parallel)"
    if one.needed_fraction < HIGHEST_FRACTION:
        return f"set {role}_mem_fraction to {one.needed_fraction + 0.005:.2f} or more, or {more}"
    return f"{more}, or serve a smaller quantization of it"
