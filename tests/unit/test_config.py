"""The configuration tree."""

from __future__ import annotations

import copy
import logging
import math
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest

from remora import Config, Runtime
from remora.actors.policies.buffer import policy_from_config
from remora.config import ModelConfig, Secret
from remora.errors import ConfigError
from remora.logging import get_logger
from remora.models.openai import OpenAIChatModel


def test_defaults() -> None:
    """S3.08, S3.09, S1.09, S1.13: the documents' figures."""
    buffer = Config().buffer
    assert (
        buffer.token_limit,
        buffer.fold_above_tokens,
        policy_from_config(buffer).keep_tokens,
    ) == (30_000, 21_000, 10_500)
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
        {"buffer": {"token_limit": 0}},
        {"buffer": {"token_limit": -1}},
        {"buffer": {"token_limit": "many"}},
        {"journal": {"durability": "maybe"}},
        {"journal": {"lease_s": 0.5}},
        {"journal": {"lease_s": 1e9}},
        {"long_term": {"shards": 0}},
        {"mailbox": {"timeout_s": 0}},
        {"models": {"embedder": "psychic"}},
        {"recall": {"vector_weight": -0.1}},
        {"recall": {"rerank_weight": 1.1}},
    ],
)
def test_bad_values_are_refused(tree: dict[str, Any]) -> None:
    """S2.33: zero, negative, of another type: an error of ours, before anything is opened."""
    with pytest.raises(ConfigError):
        Config.from_dict(tree)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "c.toml",
            "directory = 'mem'\n[buffer]\ntoken_limit = 4000\n[models]\napi_key = 'sk-secret'\n",
        ),
        ("c.yaml", "directory: mem\nbuffer:\n  token_limit: 4000\nmodels: {api_key: sk-secret}\n"),
        (
            "c.json",
            (
                '{"directory": "mem", "buffer": {"token_limit": 4000}, "models": {"api_key": '
                '"sk-secret"}}'
            ),
        ),
    ],
)
def test_files_and_environment(tmp_path: Path, name: str, text: str) -> None:
    """S2.33, S2.34: three formats, the environment over them, and secrets that never print."""
    path = tmp_path / name
    path.write_text(text)
    environment = {
        "REMORA_BUFFER__FOLD_RATIO": "0.5",
        "REMORA_LONG_TERM__ENABLED": "false",
        "REMORA_LOCK_WAIT_S": "2",
        "REMORA_BUFFER": "another program's",
        "OTHER": "1",
    }
    config = Config.from_file(path, environment=environment)
    moved = Config.from_file(path, environment={**environment, "REMORA_DIRECTORY": "there"})
    assert (moved.directory, config.lock_wait_s) == ("there", 2)
    assert (config.directory, config.buffer.token_limit, config.buffer.fold_ratio) == (
        "mem",
        4000,
        0.5,
    )
    assert config.long_term.enabled is False
    assert config.models.api_key.reveal() == "sk-secret"
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
    assert (
        runtime.config.directory,
        runtime.config.buffer.token_limit,
        runtime.config.mailbox.timeout_s,
    ) == (
        "somewhere",
        5000,
        7.5,
    )


def test_missing_extra_names_its_install() -> None:
    """S4.29: without the extra, the error is the command that installs it."""
    program = (
        "import sys; sys.modules['httpx2'] = None; import anyio, remora\n"
        "config = remora.Config.from_dict({'models': {'embedder': 'openai'}})\n"
        "anyio.run(remora.Runtime.in_memory(config=config).start)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stderr.strip().endswith(
        "remora.errors.ConfigError: models.embedder: an endpoint over HTTP needs httpx2: pip "
        'install "remora[openai]"'
    )


# -- numbers ---------------------------------------------------------------------------------------

MAY_BE_ZERO = {
    "buffer.dedup_window",
    "buffer.summary_tokens",
    "cluster.linger_s",
    "importance.weight",
    "long_term.batch_ms",
    "long_term.max_user_rows",
    "recall.answer_bonus",
    "recall.unindexed_rows",
    "recall.cache",
    "recall.hot_mb",
    "recall.list_spread",
    "recall.neighbour_bonus",
    "recall.near_words",
    "recall.question_penalty",
    "recall.relevance",
    "recall.rerank_weight",
    "recall.session_weight",
    "recall.turn_weight",
    "recall.vector_agreement",
    "recall.vector_weight",
    "recall.warm_up_s",
    "recall.window_weight",
    "retention.age_days",
    "retention.session_messages",
    "retention.total_mb",
    "supervisor.jitter",
    "turns.max_waiting",
}


def fields() -> Iterator[tuple[str, str, Any]]:
    for part in msgspec.structs.fields(Config):
        if isinstance(part.type, type) and issubclass(part.type, msgspec.Struct):
            for field in msgspec.structs.fields(part.type):
                yield part.name, field.name, field.type


NUMBERS = [(section, key, kind) for section, key, kind in fields() if kind in {int, float}]


@pytest.mark.parametrize(
    ("section", "key", "kind"), NUMBERS, ids=[f"{section}.{key}" for section, key, _ in NUMBERS]
)
def test_sizes_are_positive(section: str, key: str, kind: type) -> None:
    """S0.05, S2.33: in every numeric field a negative number is refused, and zero, unless it means
    something there.
    """
    dotted = f"{section}.{key}"
    bad: list[Any] = [-1, *([math.nan, math.inf, -0.5] if kind is float else [])]
    if dotted in MAY_BE_ZERO:
        assert getattr(getattr(Config.from_dict({section: {key: 0}}), section), key) == 0
    else:
        bad.append(0)
    for value in bad:
        with pytest.raises(ConfigError) as caught:
            Config.from_dict({section: {key: value}})
        assert caught.value.key == dotted
        assert str(caught.value).startswith(f"{dotted} must be ")
        assert str(value) in str(caught.value)
    with pytest.raises(ConfigError, match=key):  # and when the section is built by hand
        type(getattr(Config(), section))(**{key: -1})


@pytest.mark.parametrize(
    ("section", "key", "kind"),
    list(fields()),
    ids=[f"{section}.{key}" for section, key, _ in fields()],
)
def test_types_are_checked(section: str, key: str, kind: Any) -> None:
    """S2.33: a value of another type is refused in every field, and the field is named."""
    with pytest.raises(ConfigError) as caught:
        Config.from_dict({section: {key: ["something", "else"]}})
    assert caught.value.key == f"{section}.{key}"
    assert f"{section}.{key}" in str(caught.value)
    if get_origin(kind) is Literal:
        assert f"{key} must be one of {', '.join(get_args(kind))}, not" in str(caught.value)


def test_zeros_are_known() -> None:
    """S2.33: the list above names fields that exist."""
    assert {f"{section}.{key}" for section, key, _ in NUMBERS} >= MAY_BE_ZERO


# -- secrets ---------------------------------------------------------------------------------------

HIDDEN = "hunter2-s3cret"


def test_secret_never_prints() -> None:
    """S2.34: no way of making a text of it shows what it holds; only `reveal` does."""
    secret = Secret(HIDDEN)
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret:>20}",
        "%s" % secret,  # noqa: UP031
        "%r" % [secret],
        "{!s}".format(secret),  # noqa: UP032
    ]
    assert not any(HIDDEN in text for text in shown)
    assert secret.reveal() == HIDDEN
    serializers: tuple[Any, ...] = (
        pickle.dumps,
        msgspec.json.encode,
        msgspec.yaml.encode,
        str.__str__,
    )
    for serialize in serializers:
        with pytest.raises(TypeError) as caught:
            serialize(secret)
        assert HIDDEN not in str(caught.value)
    config = Config(models=ModelConfig(api_key=secret))
    assert copy.deepcopy(config) == config
    assert HIDDEN not in repr(config)
    with pytest.raises(TypeError):
        pickle.dumps(config)


def test_secret_compares_by_what_it_holds() -> None:
    """S2.34: equal secrets are equal and hash alike, an empty one is false, and no text equals one."""  # noqa: E501
    assert Secret("a") == Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert not Secret()
    assert str(Secret()) == ""
    assert Secret("a") != "a"
    not_text: Any = 7
    with pytest.raises(TypeError, match="int"):
        Secret(not_text)


@pytest.mark.parametrize(
    ("text", "secrets", "environment", "held"),
    [
        ("${{ secrets.KEY }}", {"KEY": HIDDEN}, {}, HIDDEN),
        ("${{secrets.KEY}}", None, {"KEY": HIDDEN}, HIDDEN),
        ("${{ secrets.KEY }}", {"KEY": HIDDEN}, {"KEY": "other"}, HIDDEN),
        ("${{ secrets.KEY }}", {"OTHER": "x"}, {"KEY": HIDDEN}, HIDDEN),
        ("s3://u:${{ secrets.A }}@h/${{ secrets.B }}", {"A": "1", "B": "2"}, {}, "s3://u:1@h/2"),
        ("${{ secrets.KEY }}", {"KEY": "${{ secrets.NO }}"}, {}, "${{ secrets.NO }}"),
        ("in the open", None, {}, "in the open"),
    ],
)
def test_interpolation(
    text: str, secrets: dict[str, str] | None, environment: dict[str, str], held: str
) -> None:
    """S2.34: a secret comes from the mapping, else from the environment, whole or within a text,
    and is not expanded again.
    """
    config = Config.from_dict(
        {"models": {"api_key": text}}, secrets=secrets, environment=environment
    )
    assert config.models.api_key.reveal() == held
    assert "hunter2" not in repr(config)


@pytest.mark.parametrize(
    ("tree", "key", "said"),
    [
        (
            {"models": {"api_key": "${{ secrets.NOPE }}"}},
            "models.api_key",
            "NOPE: the given secrets do not have it",
        ),
        (
            {"models": {"api_key": "${{ secrets.EMPTY }}"}},
            "models.api_key",
            "the environment has no EMPTY",
        ),
        (
            {"models": {"api_key": "${{ secrets.NUMBER }}"}},
            "models.api_key",
            "must be text, not int",
        ),
        ({"models": {"api_key": "${{ env.KEY }}"}}, "models.api_key", "only ${{ secrets.NAME }}"),
        (
            {"models": {"api_key": HIDDEN + "${{ secrets.KEY"}},
            "models.api_key",
            "only ${{ secrets.NAME }}",
        ),
        ({"models": {"api_key": "***"}}, "models.api_key", "how remora prints a secret"),
        (
            {"models": {"chat_model": "${{ secrets.KEY }}"}},
            "models.chat_model",
            "these may: journal.dsn, long_term.uri, long_term.object_store.access_key_id, ",
        ),
        (
            {"directory": "x/${{secrets.KEY}}"},
            "directory",
            "these may: journal.dsn, long_term.uri, long_term.object_store.access_key_id, ",
        ),
        (
            {"buffer": {"size": "${{ secrets.KEY }}"}},
            "buffer.size",
            "these may: journal.dsn, long_term.uri, long_term.object_store.access_key_id, ",
        ),
        (
            {"models": {"api_key": "${{ secrets.KEY }}", "timeout_s": "x"}},
            "models.timeout_s",
            "must be a number, not text",
        ),
        (
            {"models": {"api_key": "${{ secrets.KEY }}", "timeout_s": 0}},
            "models.timeout_s",
            "must be over 0",
        ),
        (
            {"models": {"api_key": "${{ secrets.KEY }}", "timeuot_s": 1}},
            "models.timeuot_s",
            "did you mean models.timeout_s?",
        ),
    ],
)
def test_secrets_in_errors(tree: dict[str, Any], key: str, said: str) -> None:
    """S2.34: what is amiss is named, where a secret was looked for and where one may stand; what it
    holds is not shown.
    """
    secrets: Any = {"KEY": HIDDEN, "EMPTY": "", "NUMBER": 7}
    with pytest.raises(ConfigError) as caught:
        Config.from_dict(tree, secrets=secrets, environment={"EMPTY": ""})
    assert said in str(caught.value)
    assert caught.value.key == key
    error: BaseException | None = caught.value
    while error is not None:
        assert HIDDEN not in str(error)
        error = error.__cause__


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("REMORA_BUFFER__SIZE", "many", "buffer.size .* must be a whole number, not text"),
        ("REMORA_BUFFER__SIZE", "0", "buffer.size .* must be over 0, not 0"),
        ("REMORA_JOURNAL__DURABILITY", "most", "journal.durability must be one of power"),
        ("REMORA_LOCK_WAIT_S", "long", "lock_wait_s .* must be a number, not text"),
        ("REMORA_BUFFER__SIZES", "3", "unknown configuration key buffer.sizes"),
    ],
)
def test_a_wrong_variable_is_named(
    variable: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2.33: what is wrong with a value, in plain words, and which environment variable it is."""
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigError, match=said) as caught:
        Config.from_environment()
    assert f"the environment variable {variable}" in str(caught.value)


def test_secrets_must_be_a_mapping() -> None:
    """S2.34: anything else is refused, and not shown."""
    not_a_mapping: Any = HIDDEN
    with pytest.raises(ConfigError, match="mapping of names") as caught:
        Config.from_dict({}, secrets=not_a_mapping)
    assert HIDDEN not in str(caught.value)


def test_syntax_error_does_not_quote(tmp_path: Path) -> None:
    """S2.34: a file that is no YAML is named with line and column, and the line, which may hold a
    secret, is not quoted.
    """
    path = tmp_path / "c.yaml"
    path.write_text(f"models:\n  api_key: [{HIDDEN}\nbuffer: {{}}\n")
    with pytest.raises(ConfigError, match=r"c\.yaml: line 3, column ") as caught:
        Config.from_file(path)
    assert HIDDEN not in str(caught.value)
    assert caught.value.__cause__ is None


def test_secrets_of_a_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S2.34: a file names them, the caller or the environment has them, a variable may name one
    too, and no log shows them.
    """
    path = tmp_path / "remora.yaml"
    path.write_text('models: {api_key: "${{ secrets.MODEL_KEY }}"}\n')
    monkeypatch.setenv("REMORA_LONG_TERM__URI", "s3://bucket?token=${{ secrets.STORE_TOKEN }}")
    monkeypatch.setenv("STORE_TOKEN", HIDDEN)
    config = Runtime.from_file(path, secrets={"MODEL_KEY": HIDDEN}).config
    assert config.models.api_key.reveal() == HIDDEN
    assert config.long_term.uri.reveal() == f"s3://bucket?token={HIDDEN}"
    with caplog.at_level(logging.INFO):
        get_logger("remora.test").info("started", config=config, key=config.models.api_key)
    assert "started" in caplog.text
    assert HIDDEN not in caplog.text
    assert HIDDEN not in repr(config)
    with pytest.raises(ConfigError, match="the environment has no MODEL_KEY"):
        Runtime.from_file(path)


# -- MUXI's tree -----------------------------------------------------------------------------------

MUXI = """\
memory:
  buffer:
    size: 50
    multiplier: 10
    vector_search: true
    embedding_model: openai/text-embedding-3-small
  working:
    max_memory_mb: 10
    fifo_interval_min: 5
    vector_dimension: 1536
  persistent:
    enabled: true
    provider: lancedb
    connection_string: ${{ secrets.MEMORY_URI }}
    user_isolation: true
  synopsis:
    identity_ttl: 604800
    context_ttl: 3600
    refresh_on_access: true
"""


def test_muxi_tree_loads(tmp_path: Path) -> None:
    """S2.33: the document's whole tree, from YAML, becomes remora's own keys."""
    path = tmp_path / "memory.yaml"
    path.write_text(MUXI)
    config = Config.from_file(path, secrets={"MEMORY_URI": "s3://bucket/memory"}, environment={})
    assert config == Config.from_dict(
        {
            "buffer": {"policy": "ring"},
            "models": {
                "embedder": "openai",
                "embedding_model": "text-embedding-3-small",
                "embedding_dimension": 1536,
            },
            "long_term": {"uri": "s3://bucket/memory"},
        }
    )


def test_muxi_values_arrive() -> None:
    """S2.33: each key that can vary changes the one that stands for it."""
    config = Config.from_dict(
        {
            "memory": {
                "buffer": {
                    "size": 7,
                    "multiplier": 3,
                    "vector_search": False,
                    "embedding_model": "wordllama",
                },
                "working": {"max_memory_mb": 2.5, "fifo_interval_min": 1, "vector_dimension": 64},
                "persistent": {"enabled": False, "connection_string": "elsewhere"},
                "synopsis": {"identity_ttl": 60, "context_ttl": 6, "refresh_on_access": False},
            }
        }
    )
    buffer, working, synopsis = config.buffer, config.working, config.synopsis
    assert (buffer.policy, buffer.size, buffer.multiplier, buffer.vector_search) == (
        "ring",
        7,
        3,
        False,
    )
    assert (working.max_memory_mb, working.fifo_interval_min) == (2.5, 1)
    assert (synopsis.identity_ttl, synopsis.context_ttl, synopsis.refresh_on_access) == (
        60,
        6,
        False,
    )
    assert (config.models.embedder, config.models.embedding_dimension) == ("wordllama", 64)
    assert (config.long_term.enabled, config.long_term.uri.reveal()) == (False, "elsewhere")


def test_muxi_defaults() -> None:
    """S2.33, S2.02: the document's defaults are remora's; its dimension is the endpoint's, the
    default embedder has one of its own.
    """
    config = Config()
    assert (config.buffer.size, config.buffer.multiplier, config.buffer.vector_search) == (
        50,
        10,
        True,
    )
    assert (config.working.max_memory_mb, config.working.fifo_interval_min) == (10, 5)
    assert (config.models.embedding_model, config.models.embedding_dimension) == (
        "text-embedding-3-small",
        1536,
    )
    assert config.models.embedder == "wordllama"
    assert config.long_term.enabled is True
    assert config.synopsis.identity_ttl == 604_800
    assert config.synopsis.context_ttl == 3_600
    assert config.synopsis.refresh_on_access is True


@pytest.mark.parametrize(
    ("memory", "key", "said"),
    [
        (None, "memory", "must be a section"),
        ({"bufer": {}}, "memory.bufer", "did you mean memory.buffer?"),
        ({"buffer": 3}, "memory.buffer", "must be a section"),
        ({"buffer": {"sizes": 3}}, "memory.buffer.sizes", "did you mean memory.buffer.size?"),
        (
            {"buffer": {"size": 0}},
            "buffer.size",
            "buffer.size (written as memory.buffer.size) must be over 0, not 0",
        ),
        (
            {"buffer": {"size": "x"}},
            "buffer.size",
            "(written as memory.buffer.size) must be a whole number, not text",
        ),
        (
            {"buffer": {"embedding_model": "cohere/x"}},
            "memory.buffer.embedding_model",
            "Runtime(…, embedder=…)",
        ),
        (
            {"buffer": {"embedding_model": "openai/"}},
            "memory.buffer.embedding_model",
            "openai/NAME",
        ),
        (
            {"persistent": {"provider": "postgresql"}},
            "memory.persistent.provider",
            "port LongTermStore",
        ),
        (
            {"persistent": {"user_isolation": False}},
            "memory.persistent.user_isolation",
            "cannot be switched off",
        ),
    ],
)
def test_muxi_tree_is_checked(memory: Any, key: str, said: str) -> None:
    """S2.33: an unknown key there is named with the nearest, a bad value by both its names, and
    what remora lacks is said.
    """
    with pytest.raises(ConfigError) as caught:
        Config.from_dict({"memory": memory})
    assert said in str(caught.value)
    assert caught.value.key == key


def test_muxi_tree_beside_remoras_own(tmp_path: Path) -> None:
    """S2.33: a key given in both trees is refused; another policy and the environment have the last
    word.
    """
    with pytest.raises(ConfigError, match=r"buffer\.size is given twice"):
        Config.from_dict({"memory": {"buffer": {"size": 3}}, "buffer": {"size": 3}})
    with pytest.raises(ConfigError, match="buffer must be a section"):
        Config.from_dict({"memory": {"buffer": {"size": 3}}, "buffer": 3})
    tree: dict[str, Any] = {"memory": {"buffer": {"size": 3}}, "buffer": {"policy": "window"}}
    assert Config.from_dict(tree).buffer.policy == "window"
    assert tree == {"memory": {"buffer": {"size": 3}}, "buffer": {"policy": "window"}}
    path = tmp_path / "c.json"
    path.write_bytes(msgspec.json.encode({"memory": {"buffer": {"size": 3}}}))
    config = Config.from_file(path, environment={"REMORA_BUFFER__SIZE": "4"})
    assert (config.buffer.size, config.buffer.policy) == (4, "ring")


# -- two ways to make a runtime --------------------------------------------------------------------


def test_simple_and_whole_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4.24: a directory and models suffice, a whole tree goes as well, nothing at all means the
    embedded defaults; a model that was chosen and cannot work is named.
    """
    simple = Runtime(
        "agent-memory",
        chat_model=lambda prompt: prompt,
        embedder=lambda texts: [[1.0] for _ in texts],
    )
    assert simple.config.models == Config().models
    whole = Runtime(
        Config.from_dict({"directory": "agent-memory", "models": {"chat_model": "my-model"}})
    )
    assert whole.config.models.chat_model == "my-model"
    assert Runtime().config.models.summarizer == "extractive"
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"models\.api_key or OPENAI_API_KEY") as caught:
        OpenAIChatModel(ModelConfig(summarizer="openai"))
    assert caught.value.key == "models.api_key"
