"""What the playbook says to servers and router itself is not said a second time."""

import pytest

from tasks.plan.errors import PlanError
from tasks.plan.service import rules
from tasks.plan.settings import managed
from tasks.support import catalogue
from tests.golden import GOLDEN
from tests.plan.builders import TWO_SOCKETS, catalogue_plan, defaults, hardware, settings

# The model's profile says these; a user may know better, and nothing else in the plan depends on them.
LEFT_TO_USERS = {
    "--quantization", "--dtype", "--attention-backend", "--moe-runner-backend", "--reasoning-parser",
    "--tool-call-parser", "--uvicorn-access-log-exclude-prefixes", "--decode-policy",
}  # fmt: skip
OF_LAYOUT = {"prefill": "pd", "decode": "pd", "server": "single", "router": "pd"}


def lines(**changes: object) -> tuple[str, ...]:
    with pytest.raises(PlanError) as refused:
        settings(**changes)
    return refused.value.lines


@pytest.mark.parametrize(
    ("setting", "words", "line"),
    [
        ("prefill_arguments", ["--host", "0.0.0.0"], "clients ask the router: use router_host"),
        ("prefill_arguments", ["--port", "1"], "use prefill_port"),
        ("prefill_arguments", ["--port=1"], "use prefill_port"),
        ("decode_arguments", ["--model-path", "/x"], "use the settings model and model_dir"),
        ("decode_arguments", ["--model", "/x"], "use the settings model and model_dir"),
        ("decode_arguments", ["--tp", "8"], "use decode_tensor_parallel"),
        ("decode_arguments", ["--hicache-size", "8"], "use decode_retraction_gb"),
        ("router_arguments", ["--host", "0.0.0.0"], "use router_host"),
        ("router_arguments", ["--worker-urls", "http://elsewhere:1"], "use layout"),
        ("router_arguments", ["--mini-lb"], "asks nobody for a key"),
    ],
)
def test_an_argument_of_ours_is_refused_with_the_setting_to_use(setting: str, words: list[str], line: str) -> None:
    (said,) = lines(**{setting: words})
    assert said == f"setting {setting} holds {words[0].partition('=')[0]}: {said.partition(': ')[2]}"
    assert line in said


@pytest.mark.parametrize("word", ["--api-key=S3cret", "--admin-api-k", "--control-plane-api-keys", "--tenant-api-key"])
def test_a_key_is_refused_in_any_spelling_and_not_shown(word: str) -> None:
    (said,) = lines(router_arguments=[word, "S3cret"])
    assert word.partition("=")[0] in said
    assert "router_api_key_env" in said
    assert "S3cret" not in said


def test_a_variable_of_ours_is_refused_with_what_to_do() -> None:
    (said,) = lines(decode_environment={"CUDA_VISIBLE_DEVICES": "0"})
    assert said == "setting decode_environment holds CUDA_VISIBLE_DEVICES: use decode_gpus"
    shared = {"value": "/x", "reason": "r", "source": "s"}
    (said,) = lines(worker_environment={"TRITON_CACHE_DIR": shared})
    assert "worker_environment holds TRITON_CACHE_DIR: caches lie below state_dir" in said
    (said,) = lines(router_environment={"PD_SECRET": "/x"})
    assert "router_environment holds PD_SECRET" in said
    settings(router_environment={"HOME": "/x"})


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_every_argument_of_a_plan_is_managed_or_left_to_users_on_purpose(name: str) -> None:
    """A new argument of ours gets a line in the table, or stands above."""
    plan = catalogue_plan(GOLDEN[name], hardware(TWO_SOCKETS))
    for instance in plan.instances:
        given = [line[0].partition("=")[0] for line in instance.arguments]
        refused = managed.arguments("x_arguments", instance.role, given)
        held = {line.split(" holds ")[1].split(": ")[0] for line in refused}
        assert set(given) - held <= LEFT_TO_USERS


def test_every_setting_that_is_named_instead_exists() -> None:
    for role in OF_LAYOUT:
        words = [word for names in managed._OF_ROLE[role] for word in names]
        for line in managed.arguments("x_arguments", role, words):
            for setting in (word for word in line.split(": ")[1].split() if "_" in word):
                assert setting.strip(",") in defaults(), line


# ---- the router's own options


def router_check(**changes: object) -> None:
    wanted = settings(**changes)
    found = catalogue.offered(wanted.release)[0]
    rules.check_router(wanted, found, catalogue.router_arguments(found, wanted.router))


@pytest.mark.parametrize("router", ["sglang-router", "smg"])
def test_a_router_argument_that_the_router_does_not_know_is_refused(router: str) -> None:
    with pytest.raises(PlanError) as refused:
        router_check(router=router, router_arguments=["--cache-treshold", "0.5"])
    (line,) = refused.value.lines
    assert line.startswith(f"setting router_arguments: {router} ")
    assert line.endswith("knows no argument --cache-treshold. Did you mean --cache-threshold?")
    router_check(router=router, router_arguments=["--cache-threshold=0.5", "--log-level", "debug"])


def test_what_only_one_router_knows_is_refused_for_the_other() -> None:
    router_check(router="smg", router_arguments=["--health-check-port", "1234"])
    with pytest.raises(PlanError):
        router_check(router="sglang-router", router_arguments=["--health-check-port", "1234"])
