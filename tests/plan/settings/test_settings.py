"""group_data becomes one typed object, or one clear line a fault."""

from collections.abc import Iterator

import pytest
from pyinfra.api.arguments import all_argument_meta
from pyinfra.connectors.chroot import ChrootConnector
from pyinfra.connectors.docker import DockerConnector
from pyinfra.connectors.fake import FakeConnector
from pyinfra.connectors.ssh import SSHConnector

from tasks.plan.errors import PlanError
from tasks.plan.settings.roles import KINDS, Role
from tasks.plan.settings.settings import WORDS, Settings, load, load_alone
from tests.plan.builders import defaults, settings

CONNECTORS = (ChrootConnector, DockerConnector, FakeConnector, SSHConnector)
PYINFRA_KEYS = sorted(
    {name for name in all_argument_meta if name.startswith("_")}
    | {name for connector in CONNECTORS for name in connector.data_meta}
)


def faults(**changes: object) -> tuple[str, ...]:
    """The lines that a user sees for all.py with these changes."""
    with pytest.raises(PlanError) as refused:
        settings(**changes)
    for line in refused.value.lines:
        assert "\n" not in line
        assert "pydantic" not in line.lower()
        assert "pattern" not in line
    return refused.value.lines


def fault(**changes: object) -> str:
    lines = faults(**changes)
    assert len(lines) == 1, lines
    return lines[0]


def test_the_defaults_are_valid() -> None:
    assert load(defaults()).release == defaults()["release"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("decode_mem_fractoin", "decode_mem_fraction"),
        ("prefil_port", "prefill_port"),
        ("context_lenght", "context_length"),
        ("models_dir", "model_dir"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_name(given: str, meant: str) -> None:
    line = fault(**{given: 1})
    assert f"unknown setting {given}" in line
    assert f"Did you mean {meant}?" in line


def test_an_unknown_setting_like_nothing_known_gets_no_guess() -> None:
    assert "Did you mean" not in fault(zzzz=1)


@pytest.mark.parametrize("key", PYINFRA_KEYS)
def test_keys_of_pyinfra_are_left_to_it(key: str) -> None:
    assert settings(**{key: "anything"}) == settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("context_length", "131072"),
        ("context_length", 131072.0),
        ("context_length", True),
        ("context_length", 0),
        ("prefill_port", "30000"),
        ("prefill_port", 0),
        ("prefill_port", 65536),
        ("decode_mem_fraction", "0.6"),
        ("decode_mem_fraction", 0.0),
        ("decode_mem_fraction", 1),
        ("decode_mem_fraction", True),
        ("prefill_gpus", []),
        ("prefill_gpus", 0),
        ("prefill_gpus", "0,1,2,3"),
        ("prefill_gpus", [0, 1, 2, "3"]),
        ("prefill_gpus", [0, 1, 2, -1]),
        ("decode_numa_node", -1),
        ("report_dir", ""),
        ("report_dir", False),
        ("full_diff", "yes"),
        ("prefill_cuda_graph", "no"),
        ("prefill_arguments", "--log-level debug"),
        ("prefill_environment", ["A=1"]),
        ("prefill_environment", {"A": 1}),
        ("prefill_instances", 0),
        ("transfer_backend", "ucx"),
        ("router_policy", "fastest"),
        ("restart_scope", "all"),
        ("python", "3.10"),
        ("python", 3),
        ("root_dir", "opt/sglang-pd"),
        ("root_dir", "/opt/sglang pd"),
        ("root_dir", "/opt/sglang-pd/"),
        ("root_dir", "/opt/$HOME"),
        ("root_dir", "/opt/{a}"),
        ("root_dir", "/opt/50%"),
        ("root_dir", "/opt/a;b"),
        ("root_dir", "/"),
        ("service_user", "Service User"),
        ("model_revision", "main"),
        ("limit_memlock", "much"),
        ("release", None),
        ("package_find_links", "/wheels"),
        ("worker_ready_limit", 0),
        ("worker_environment", {"NCCL_DEBUG": "INFO"}),
        ("router_health_interval", 0.5),
    ],
)
def test_a_wrong_type_or_value_is_one_line_that_names_setting_and_value(name: str, value: object) -> None:
    line = fault(**{name: value})
    assert line.startswith(f"setting {name}")
    assert repr(value) in line


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model_dir": "models/q"}, "setting model_dir = 'models/q': write the whole path, from / on, "),
        ({"limit_memlock": "64 GB"}, "setting limit_memlock = '64 GB': write bytes, such as '64G', or 'infinity'"),
        ({"bench_limits": "450"}, "setting bench_limits = '450': write ms to the first token / ms between tokens, "),
        ({"existing_python": "/opt/conda"}, "setting existing_python = '/opt/conda': write the path of its python, "),
    ],
)
def test_a_text_of_another_form_says_what_to_write(changes: dict[str, object], line: str) -> None:
    assert fault(**changes).startswith(line)


def test_every_form_that_a_setting_must_have_is_told_in_words() -> None:
    def forms(schema: object) -> Iterator[str]:
        parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
        yield from (form for part in parts for form in forms(part))
        if isinstance(schema, dict) and isinstance(schema.get("pattern"), str):
            yield schema["pattern"]

    assert set(forms(Settings.model_json_schema())) == set(WORDS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"root_dir": "/var/lib/sglang-pd"}, "setting root_dir = '/var/lib/sglang-pd' lies in state_dir"),
        ({"root_dir": "/var/lib/sglang-pd/opt"}, "what root runs must lie elsewhere"),
        ({"config_dir": "/var/lib/sglang-pd/etc"}, "setting config_dir = '/var/lib/sglang-pd/etc' lies in state_dir"),
        ({"config_dir": "/opt/sglang-pd"}, "root_dir and config_dir are both '/opt/sglang-pd'"),
        ({"state_dir": "/data"}, "setting state_dir = '/data' is a folder that others use too"),
        ({"state_dir": "/home"}, "setting state_dir = '/home' is a folder that others use too"),
        ({"state_dir": "/etc"}, "setting state_dir = '/etc' is a folder that others use too"),
        ({"state_dir": "/var/lib"}, "such as /var/lib/sglang-pd"),
        ({"root_dir": "/usr/local"}, "setting root_dir = '/usr/local'"),
        ({"config_dir": "/etc"}, "setting config_dir = '/etc'"),
        ({"state_dir": "/tmp/state"}, "lies in /tmp, which is the system's own"),
        ({"state_dir": "/run/state"}, "lies in /run"),
        ({"root_dir": "/root/pd"}, "lies in /root"),
        ({"state_dir": "/data/../etc/x"}, "write it without '.', '..' and double slashes"),
        ({"root_dir": "/opt//pd"}, "write it without"),
        ({"config_dir": "/etc/./pd"}, "write it without"),
        ({"service_user": "root"}, "setting service_user = 'root'"),
    ],
)
def test_a_folder_or_user_that_would_give_root_away_is_refused(changes: dict[str, object], words: str) -> None:
    assert words in fault(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"state_dir": "/data/sglang-pd"},
        {"state_dir": "/opt/sglang-pd/state"},
        {"root_dir": "/usr/local/sglang-pd", "config_dir": "/usr/local/etc/sglang-pd"},
        {"root_dir": "/var/lib/sglang-pd-tools"},
        {"state_dir": "/home/sglang/state", "service_user": "sglang2"},
    ],
)
def test_folders_of_the_services_own_are_taken(changes: dict[str, object]) -> None:
    assert settings(**changes)


def test_a_variable_without_reason_is_refused_by_its_name() -> None:
    line = fault(worker_environment={"NCCL_DEBUG": {"value": "INFO", "source": "NCCL manual"}})
    assert "environment['NCCL_DEBUG']['reason']" in line


def test_an_empty_reason_is_no_reason() -> None:
    assert "['reason']" in fault(worker_environment={"NCCL_DEBUG": {"value": "INFO", "reason": "", "source": "manual"}})


def test_every_fault_of_a_file_is_told_at_once() -> None:
    lines = faults(prefill_port="30000", decode_mem_fraction=2.0, unknown_thing=1)
    assert [line.split()[1] for line in lines if line.startswith("setting")] == ["prefill_port", "decode_mem_fraction"]
    assert any("unknown_thing" in line for line in lines)


def test_a_missing_setting_names_the_file_of_the_defaults() -> None:
    data = defaults()
    del data["context_length"]
    with pytest.raises(PlanError, match=r"setting context_length is missing: group_data/all\.py"):
        load(data)


@pytest.mark.parametrize(
    ("given", "meant"), [(3.11, "3.11"), (3.12, "3.12"), (3.13, "3.13"), ("3.12", "3.12"), ("auto", "auto")]
)
def test_python_from_the_command_line_is_a_float_and_still_a_version(given: object, meant: str) -> None:
    assert settings(python=given).python == meant


@pytest.mark.parametrize("name", ["prefill_mem_fraction", "decode_mem_fraction", "minimum_free_disk_gb"])
def test_a_whole_number_where_a_fraction_is_asked_for_is_judged_as_a_number(name: str) -> None:
    if name == "minimum_free_disk_gb":
        assert settings(**{name: 200}).minimum_free_disk_gb == 200.0
    else:
        assert "less than 1" in fault(**{name: 1})


# ---- roles


@pytest.mark.parametrize("kind", KINDS)
def test_a_setting_of_a_role_is_a_field_of_that_role(kind: type[Role]) -> None:
    """Every one of group_data/all.py that begins with the role's name, and no field that it does not have."""
    assert {name for name in defaults() if name.startswith(f"{kind.name}_")} == set(kind.settings())
    role, other = (getattr(settings(**{f"{kind.name}_port": port}), kind.name) for port in (1000, 2000))
    assert (role.port, other.port) == (1000, 2000)
    assert settings(**{f"{kind.name}_mem_fraction": 0.31}) != settings()


@pytest.mark.parametrize(
    ("layout", "servers"),
    [("pd", {"prefill": 3, "decode": 1}), ("single", {"server": 1}), ("data_parallel", {"server": 2})],
)
def test_a_layout_is_which_roles_exist(layout: str, servers: dict[str, int]) -> None:
    found = settings(layout=layout, prefill_instances=3).roles
    assert {name: role.instances for name, role in found.items()} == servers


@pytest.mark.parametrize("name", ["decode_chunked_prefill", "prefill_cuda_graph_max_batch", "server_bootstrap_port"])
def test_what_only_another_role_has_is_unknown(name: str) -> None:
    assert f"unknown setting {name} = 1" in fault(**{name: 1})


@pytest.mark.parametrize("name", ["prefill", "decode_address", "decode_name", "server_role"])
def test_what_a_role_has_beside_its_settings_is_none(name: str) -> None:
    assert f"unknown setting {name} = 1" in fault(**{name: 1})


@pytest.mark.parametrize("name", ["prefill_port", "prefill_cuda_graph", "server_prefill_cuda_graph"])
def test_a_missing_setting_of_a_role_has_its_flat_name(name: str) -> None:
    data = defaults()
    del data[name]
    with pytest.raises(PlanError, match=f"setting {name} is missing"):
        load(data)


def test_other_layouts_settings_are_left_alone_where_they_only_contradict_each_other() -> None:
    same = {"prefill_gpus": [0, 1, 2, 3], "decode_gpus": [0, 1, 2, 3], "decode_port": 30000}
    assert list(settings(layout="single", **same).roles) == ["server"]


# ---- contradictions between settings


def test_a_wheel_folder_is_the_only_source() -> None:
    assert settings(package_wheelhouse="/srv/wheels").package_wheelhouse == "/srv/wheels"
    line = fault(package_wheelhouse="/srv/wheels", package_index="https://a.test/s", package_find_links=["/b"])
    assert "means that folder alone: leave out package_index and package_find_links" in line


def test_gpus_that_do_not_fill_the_servers() -> None:
    line = fault(prefill_gpus=[0, 1, 2])
    assert "prefill_gpus names 3 GPUs" in line
    assert "1 x prefill_tensor_parallel 4 needs 4" in line


def test_a_gpu_named_twice() -> None:
    assert "a GPU is named twice" in fault(decode_gpus=[4, 5, 6, 6])


def test_a_gpu_of_both_roles_names_both_settings() -> None:
    line = fault(prefill_gpus=[0, 1, 2, 3], decode_gpus=[3, 4, 5, 6])
    assert "prefill_gpus and decode_gpus both name GPU 3" in line


@pytest.mark.parametrize("name", ["router_host", "router_metrics_host"])
def test_beyond_loopback_only_with_a_key(name: str) -> None:
    line = fault(**{name: "0.0.0.0"})
    assert f"setting {name} = '0.0.0.0'" in line
    assert "router_api_key_env" in line


def test_beyond_loopback_with_a_key() -> None:
    assert settings(router_host="0.0.0.0", router_api_key_env="PD_KEY").router_host == "0.0.0.0"


def test_a_key_before_another_one_is_for_the_router_that_takes_two() -> None:
    before = {"router_api_key_before_env": "PD_OLD"}
    assert "needs router_api_key_env" in fault(**before)
    assert "sglang-router takes one key" in fault(**before, router_api_key_env="PD_KEY")
    assert settings(**before, router_api_key_env="PD_KEY", router="smg").router_api_key_before_env == "PD_OLD"


@pytest.mark.parametrize("value", ["expandable_segments:True", "max_split_size_mb:64, expandable_segments : true"])
@pytest.mark.parametrize("scope", ["worker_environment", "prefill_environment", "decode_environment"])
def test_expandable_segments_with_nixl(scope: str, value: str) -> None:
    variable: object = {"value": value, "reason": "r", "source": "s"} if scope == "worker_environment" else value
    line = fault(**{scope: {"PYTORCH_CUDA_ALLOC_CONF": variable}})
    assert f"setting {scope}['PYTORCH_CUDA_ALLOC_CONF']" in line
    assert "expandable_segments" in line


def test_expandable_segments_without_nixl_are_a_choice() -> None:
    given = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert settings(transfer_backend="mooncake", decode_environment=given).decode.environment == given


@pytest.mark.parametrize("name", ["1ST", "A-B", "A B", "A=B", "", "A\n"])
def test_a_name_that_no_shell_could_hold(name: str) -> None:
    assert "not a name of an environment variable" in fault(prefill_environment={name: "1"})


@pytest.mark.parametrize("value", ["1\n2", "1\n", "1\r2"])
def test_a_value_with_a_line_break(value: str) -> None:
    assert "line break" in fault(router_environment={"A": value})


@pytest.mark.parametrize("field", ["value", "reason", "source"])
def test_a_variable_with_a_line_break_anywhere(field: str) -> None:
    variable = {"value": "1", "reason": "r", "source": "s", field: "one\ntwo"}
    assert "line break" in fault(worker_environment={"A": variable})


def test_patches_for_an_environment_that_is_there_are_one_fault() -> None:
    line = fault(environment="existing", existing_python="/opt/env/bin/python3", patches=["shim"])
    assert line.startswith("setting patches = ['shim']: nothing is placed into environment")


@pytest.mark.parametrize(
    "data",
    [{"model_hub": "https://me:password@hub.example"}, {"package_index": ["https://me:password@pypi.example/simple"]}],
)
def test_a_refusal_shows_no_password(data: dict[str, object]) -> None:
    with pytest.raises(PlanError) as error:
        settings(**data)
    assert "password" not in str(error.value) and next(iter(data)) in str(error.value)


@pytest.mark.parametrize("role", ["prefill", "decode", "server", "router"])
@pytest.mark.parametrize("words", [["--api-key", "of-mine"], ["--api-key=of-mine"], ["--tenant-api-key", "of-mine"]])
def test_a_key_among_arguments_is_refused_unshown(role: str, words: list[str]) -> None:
    layout = "single" if role == "server" else "pd"
    with pytest.raises(PlanError) as error:
        settings(layout=layout, **{f"{role}_arguments": words})
    (line,) = error.value.lines
    assert line.startswith(f"setting {role}_arguments holds --") and "router_api_key_env" in line
    assert "of-mine" not in line


def test_a_part_on_one_host_asks_nobody_where_it_stands_among_others() -> None:
    data = {**defaults(), "minimum_prefill": 1, "minimum_decode": 1, "roles": ["prefill"]}
    assert load_alone(data).root_dir == "/opt/sglang-pd"
    with pytest.raises(PlanError, match="serves alone"):
        load(data)


@pytest.mark.parametrize(
    "shared",
    [
        {"prefill_gpus": [0], "decode_gpus": [0], "prefill_tensor_parallel": 1, "decode_tensor_parallel": 1},
        {"prefill_port": 30000, "decode_port": 30000},
        {"router_queue": 100},  # of smg, which hosts that serve together get without a word
    ],
)
def test_a_part_on_one_host_takes_what_is_right_for_hosts_that_serve_together(shared: dict[str, object]) -> None:
    data = {**defaults(), **shared}
    assert load_alone(data).root_dir == "/opt/sglang-pd"
    with pytest.raises(PlanError):
        load(data)


def test_a_part_on_one_host_touches_no_folder_of_others() -> None:
    with pytest.raises(PlanError, match="setting root_dir = '/usr'"):
        load_alone({**defaults(), "root_dir": "/usr"})
