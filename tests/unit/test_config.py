"""The configuration tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remora import Config, Runtime
from remora.actors.policies import policy_of
from remora.errors import ConfigError


def test_defaults() -> None:
    """S3.08, S3.09, S1.09, S1.13: the documents' figures."""
    buffer = Config().buffer
    assert (buffer.token_limit, buffer.fold_above_tokens, policy_of(buffer).keep_tokens) == (30_000, 21_000, 10_500)
    assert buffer.summary_prefix == "Summary of earlier conversation: "
    assert Config().journal.durability == "power"


@pytest.mark.parametrize(
    ("tree", "key", "hint"),
    [
        ({"bufer": {}}, "bufer", "did you mean buffer?"),
        ({"buffer": {"token_limt": 1}}, "buffer.token_limt", "did you mean buffer.token_limit?"),
        ({"buffer": {"xyzzy": 1}}, "buffer.xyzzy", "known here"),
        ({"buffer": 3}, "buffer", "must be a section"),
    ],
)
def test_unknown_keys_are_refused(tree: dict[str, Any], key: str, hint: str) -> None:
    """S2.33: the key is named, and the nearest one that is known."""
    with pytest.raises(ConfigError, match=hint) as caught:
        Config.from_dict(tree)
    assert caught.value.key == key


@pytest.mark.parametrize(
    "tree",
    [
        {"buffer": {"token_limit": 0}}, {"buffer": {"token_limit": -1}}, {"buffer": {"token_limit": "many"}},
        {"journal": {"durability": "maybe"}}, {"long_term": {"shards": 0}}, {"mailbox": {"timeout_s": 0}},
        {"models": {"embedder": "psychic"}}, {"recall": {"vector_weight": -0.1}},
    ],
)  # fmt: skip
def test_bad_values_are_refused(tree: dict[str, Any]) -> None:
    """S2.33: zero, negative, of another type: an error of ours, before anything is opened."""
    with pytest.raises(ConfigError):
        Config.from_dict(tree)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.toml", "directory = 'mem'\n[buffer]\ntoken_limit = 4000\n[models]\napi_key = 'sk-secret'\n"),
        ("c.yaml", "directory: mem\nbuffer:\n  token_limit: 4000\nmodels: {api_key: sk-secret}\n"),
        ("c.json", '{"directory": "mem", "buffer": {"token_limit": 4000}, "models": {"api_key": "sk-secret"}}'),
    ],
)
def test_files_and_environment(tmp_path: Path, name: str, text: str) -> None:
    """S2.33, S2.34: three formats, the environment over them, and secrets that never print."""
    path = tmp_path / name
    path.write_text(text)
    environment = {"REMORA_BUFFER__FOLD_RATIO": "0.5", "REMORA_LONG_TERM__ENABLED": "false", "OTHER": "1"}
    config = Config.from_file(path, environment=environment)
    assert (config.directory, config.buffer.token_limit, config.buffer.fold_ratio) == ("mem", 4000, 0.5)
    assert config.long_term.enabled is False
    assert str(config.models.api_key) == "sk-secret"
    assert "sk-secret" not in repr(config)


def test_environment_is_checked_too() -> None:
    """S2.33: a misspelt variable is refused like a misspelt key."""
    with pytest.raises(ConfigError, match=r"did you mean buffer\.token_limit"):
        Config.from_environment({"REMORA_BUFFER__TOKEN_LIMITS": "1"})
    with pytest.raises(ConfigError):
        Config.from_environment({"REMORA_BUFFER__TOKEN_LIMIT": "many"})


@pytest.mark.parametrize(("name", "text"), [("c.ini", ""), ("c.toml", "= ="), ("c.yaml", "a: [")])
def test_files_that_are_none(tmp_path: Path, name: str, text: str) -> None:
    """S2.33: a bad file is named."""
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=name):
        Config.from_file(path)
    with pytest.raises(ConfigError, match="cannot read"):
        Config.from_file(tmp_path / "absent.toml")


def test_runtime_refuses_what_is_no_configuration() -> None:
    """S2.33: the mistake is named where it is made."""
    bad: Any = {"buffer": {}}
    with pytest.raises(ConfigError, match="from_dict"):
        Runtime("somewhere", config=bad)
    with pytest.raises(ConfigError, match="once"):
        Runtime(Config(), config=Config())
    not_a_model: Any = 7
    with pytest.raises(ConfigError, match="chat_model"):
        Runtime("somewhere", chat_model=not_a_model)


def test_runtime_from_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2.33: a runtime takes its configuration from a file, and the environment over it."""
    path = tmp_path / "remora.yaml"
    path.write_text("directory: somewhere\nbuffer: {token_limit: 5000}\n")
    monkeypatch.setenv("REMORA_MAILBOX__TIMEOUT_S", "7.5")
    runtime = Runtime.from_file(path)
    assert (runtime.config.directory, runtime.config.buffer.token_limit, runtime.config.mailbox.timeout_s) == (
        "somewhere",
        5000,
        7.5,
    )


def test_missing_extra_names_its_install() -> None:
    """S4.29: without the extra, the error is the command that installs it."""
    program = "import sys; sys.modules['httpx2'] = None; import remora.models.openai"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert 'ImportError: an OpenAI-compatible endpoint needs httpx2: pip install "remora[openai]"' in done.stderr
