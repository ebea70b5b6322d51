"""What leaves a host for whoever helps holds no secret and no prompt, wherever they stood."""

from __future__ import annotations

import base64
import html
import io
import json
import tarfile
from urllib.parse import quote

import pytest
from markupsafe import escape

from tasks.plan.errors import PlanError
from tasks.plan.host.answers import Answer
from tasks.plan.report.bundle import archive, clean, files, secrets_in

KEY, PROMPT = "q8Zr-planted-key", "planted words of a user"


@pytest.mark.parametrize(
    "line",
    [
        "HF_TOKEN=planted",
        "export AWS_SECRET_ACCESS_KEY='planted and more'",
        '  "HF_TOKEN": "planted",',
        '"_sudo_password": "planted"',
        "api_key='planted', admin_api_key=planted)",
        "python -m sglang.launch_server --api-key planted --port 30000",
        "Authorization: Bearer planted",
        "{'authorization': 'Bearer planted'}",
        "curl -H 'Authorization: Basic cGxhbnRlZA=='".replace("cGxhbnRlZA==", "planted=="),
        "Authorization: planted",
        "MY_PASSWORD=a,planted;b planted",
        'python -m sglang.launch_server --api-key "a planted" --port 30000',
        "&#34;HF_TOKEN&#34;: &#34;a planted&#34;, &quot;MY_KEY&quot;: &quot;planted&quot;",
        'chunk: {"tool_calls": [{"function": {"arguments": "planted"}}]}',
        "'Authorization': 'ApiKey planted and more', 'Accept': '*/*'",
        "1 validation error: [type=string_type, input_value='planted', input_type=str]",
        "UV_INDEX=https://me:planted@packages.example.com/simple",
        "loading with hf_plantedplantedplanted",
        "-----BEGIN PRIVATE KEY-----\nplanted\n-----END PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\nplanted, cut off",
        'body: {"model": "m", "messages": [{"role": "user", "content": "planted"}]}',
        "Receive: obj=GenerateReqInput(rid='1', text='planted', input_ids=None)",
        "Finish: obj=..., out={'text': 'planted', 'meta_info': {}}",
        'error: {"prompt": "first line',
        '{\\"content\\": \\"planted\\"}',
    ],
)
def test_planted(line: str) -> None:
    assert "planted" not in clean(f"before\n{line}\nafter", [])
    assert clean(f"before\n{line}\n", []).startswith("before\n")


@pytest.mark.parametrize("line", ["PASSWORD=12345678", '"_sudo_password": 12345678,', "passphrase: 1.5"])
def test_a_password_of_digits(line: str) -> None:
    assert "1" not in clean(line, [])


@pytest.mark.parametrize("secret", [KEY, 'a"key with <signs> & more', "ö-schlüssel"])
@pytest.mark.parametrize("form", ["{}", "x{}y", "key {} in the middle"])
def test_a_known_secret_goes_wherever_it_stands(secret: str, form: str) -> None:
    for written in (secret, html.escape(secret), str(escape(secret)), json.dumps(secret)[1:-1], quote(secret, safe=""),
                    base64.b64encode(secret.encode()).decode()):  # fmt: skip
        assert written not in clean(form.format(written), [secret])


def test_a_prompt_of_several_lines_goes_whole() -> None:
    journal = (
        "12:00 a python[1]: text='first\n           planted second\n           planted third\n12:01 a python[1]: next"
    )
    told = clean(journal, [])
    assert "planted" not in told and told.endswith("12:01 a python[1]: next")


@pytest.mark.parametrize(
    "line",
    [
        "Prefill batch, #new-seq: 1, #new-token: 16, #cached-token: 0, token usage: 0.00",
        "max_total_num_tokens=1000, chunked_prefill_size=1024, context_len=1024",
        "ExecStart=/opt/sglang-pd/bin/pd-launch run --instance prefill --folder /run/sglang-pd/prefill",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        '  "router_api_key_env": null,',
        "GPU 4 NUMA 1 PIX SYS",
        "tokenizer_path='/models/qwen', trust_remote_code=True",
    ],
)
def test_what_helps_stays(line: str) -> None:
    assert clean(line, [KEY]) == line


def test_a_line_of_one_long_word_takes_no_time() -> None:
    """What a server prints may be as long as journald lets it: each start in it tried anew would take hours."""
    assert clean("a" * 2_000_000, []) == "a" * 2_000_000


def test_the_hosts_own_key_is_used_and_left_out() -> None:
    sections = {
        "secrets": Answer(0, f"{KEY}\nolder-key"),
        "journal/router.txt": Answer(0, f"refused {KEY}, then older-key"),
    }
    found = files(
        sections, {"settings.json": f'{{"x": "{KEY} my-password, a-key, b-key"}}'}, ["my-password", "", "a-key\nb-key"]
    )
    assert found.keys() == {"host/journal/router.txt", "settings.json"}
    assert not [text for text in found.values() if KEY in text or "older-key" in text or "my-password" in text]
    assert not [text for text in found.values() if "a-key" in text or "b-key" in text]


def test_of_an_answer_that_was_cut_nothing_is_written() -> None:
    with pytest.raises(PlanError, match="cut short"):
        files({"journal/router.txt": Answer(0, f"refused {KEY}")}, {}, [])


def test_secrets_of_settings_however_deep() -> None:
    data = {
        "_sudo_password": "one-one",
        "worker_environment": {
            "HF_TOKEN": {"value": "two-two", "reason": "r", "source": "s"},
            "LEVEL": {"value": "SYS"},
        },
        "decode_environment": {"MY_KEY": "three", "X": "y"},
        "ssh_key": "four",
        "ssh_password": 55555,
        "with_token": True,
        "router_api_key_env": "NAME_OF_IT",
    }
    assert sorted(secrets_in(data)) == ["55555", "four", "one-one", "three", "two-two"]
    told = clean(json.dumps(data, indent=2), secrets_in(data))
    assert not [value for value in secrets_in(data) if value in told] and "SYS" in told and "NAME_OF_IT" in told


def test_the_archive_holds_each_file() -> None:
    packed = archive("gpu-1-now", {"a.txt": "ä", "b/c.txt": "d"}, at=0)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert tar.getnames() == ["gpu-1-now/a.txt", "gpu-1-now/b/c.txt"]
        read = tar.extractfile("gpu-1-now/a.txt")
        assert read and read.read().decode() == "ä"
