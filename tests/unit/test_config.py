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

HIDDEN = "hunter2-s3cret"
KEY = "${{ secrets.KEY }}"


def _key(text: str, **more: Any) -> dict[str, Any]:
    return {"models": {"api_key": text, **more}}


def _muxi(**buffer: Any) -> dict[str, Any]:
    return {"memory": {"buffer": buffer}}


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


MAY_REFER = "these may: journal.dsn, long_term.uri, long_term.object_store.access_key_id, "
REFUSED: tuple[tuple[dict[str, Any], str, str], ...] = (
    # an unknown key, with the nearest one that is known
    ({"bufer": {}}, "bufer", "did you mean buffer?"),
    ({"buffer": {"token_limt": 1}}, "buffer.token_limt", "did you mean buffer.token_limit?"),
    ({"buffer": {"xyzzy": 1}}, "buffer.xyzzy", "known here"),
    ({"buffer": 3}, "buffer", "must be a section"),
    # a value of another type, or out of bounds
    ({"buffer": {"token_limit": 0}}, "buffer.token_limit", "must be over 0"),
    ({"buffer": {"token_limit": "many"}}, "buffer.token_limit", "must be a whole number"),
    ({"journal": {"durability": "maybe"}}, "journal.durability", "must be one of power"),
    ({"journal": {"lease_s": 0.5}}, "journal.lease_s", "must be 1 to 86,400"),
    ({"journal": {"lease_s": 1e9}}, "journal.lease_s", "must be 1 to 86,400"),
    ({"models": {"embedder": "psychic"}}, "models.embedder", "must be one of wordllama, "),
    ({"recall": {"vector_weight": -0.1}}, "recall.vector_weight", "must be at least 0"),
    ({"recall": {"rerank_weight": 1.1}}, "recall.rerank_weight", "must be at most 1"),
    # a secret that is not there, or stands where none may
    (_key("${{ secrets.NOPE }}"), "models.api_key", "NOPE: the given secrets do not have it"),
    (_key("${{ secrets.EMPTY }}"), "models.api_key", "the environment has no EMPTY"),
    (_key("${{ secrets.NUMBER }}"), "models.api_key", "must be text, not int"),
    (_key("${{ env.KEY }}"), "models.api_key", "only ${{ secrets.NAME }}"),
    (_key(HIDDEN + "${{ secrets.KEY"), "models.api_key", "only ${{ secrets.NAME }}"),
    (_key("***"), "models.api_key", "how remora prints a secret"),
    ({"models": {"chat_model": "${{ secrets.KEY }}"}}, "models.chat_model", MAY_REFER),
    ({"directory": "x/${{secrets.KEY}}"}, "directory", MAY_REFER),
    ({"buffer": {"size": "${{ secrets.KEY }}"}}, "buffer.size", MAY_REFER),
    (_key(KEY, timeout_s="x"), "models.timeout_s", "must be a number, not text"),
    (_key(KEY, timeout_s=0), "models.timeout_s", "must be over 0"),
    (_key(KEY, timeuot_s=1), "models.timeuot_s", "did you mean models.timeout_s?"),
    # in MUXI's tree: a bad value by both its names, and what remora lacks
    ({"memory": None}, "memory", "must be a section"),
    ({"memory": {"bufer": {}}}, "memory.bufer", "did you mean memory.buffer?"),
    ({"memory": {"buffer": 3}}, "memory.buffer", "must be a section"),
    (_muxi(sizes=3), "memory.buffer.sizes", "did you mean memory.buffer.size?"),
    (_muxi(size=0), "buffer.size", "(written as memory.buffer.size) must be over 0, not 0"),
    (
        _muxi(size="x"),
        "buffer.size",
        "(written as memory.buffer.size) must be a whole number, not text",
    ),
    (
        _muxi(embedding_model="cohere/x"),
        "memory.buffer.embedding_model",
        "Runtime(…, embedder=…)",
    ),
    (_muxi(embedding_model="openai/"), "memory.buffer.embedding_model", "openai/NAME"),
    (
        {"memory": {"persistent": {"provider": "postgresql"}}},
        "memory.persistent.provider",
        "port LongTermStore",
    ),
    (
        {"memory": {"persistent": {"user_isolation": False}}},
        "memory.persistent.user_isolation",
        "cannot be switched off",
    ),
)


def test_what_is_refused_is_named() -> None:
    """S2.33, S2.34: the key is named with what is amiss, before anything is opened, and what a
    secret holds is not shown.
    """
    secrets: Any = {"KEY": HIDDEN, "EMPTY": "", "NUMBER": 7}
    for tree, key, said in REFUSED:
        with pytest.raises(ConfigError) as caught:
            Config.from_dict(tree, secrets=secrets, environment={"EMPTY": ""})
        assert said in str(caught.value), tree
        assert caught.value.key == key, tree
        error: BaseException | None = caught.value
        while error is not None:
            assert HIDDEN not in str(error), tree
            error = error.__cause__


FILES = {
    "c.toml": "directory = 'mem'\n[buffer]\ntoken_limit = 4000\n[models]\napi_key = 'sk-secret'\n",
    "c.yaml": "directory: mem\nbuffer:\n  token_limit: 4000\nmodels: {api_key: sk-secret}\n",
    "c.json": '{"directory": "mem", "buffer": {"token_limit": 4000}, '
    '"models": {"api_key": "sk-secret"}}',
}


def test_files_and_environment(tmp_path: Path) -> None:
    """S2.33, S2.34: three formats, the environment over them, and secrets that never print."""
    environment = {
        "REMORA_BUFFER__FOLD_RATIO": "0.5",
        "REMORA_LONG_TERM__ENABLED": "false",
        "REMORA_LOCK_WAIT_S": "2",
        "REMORA_BUFFER": "another program's",
        "OTHER": "1",
    }
    for name, text in FILES.items():
        path = tmp_path / name
        path.write_text(text)
        config = Config.from_file(path, environment=environment)
        moved = Config.from_file(path, environment={**environment, "REMORA_DIRECTORY": "there"})
        assert (moved.directory, config.directory, config.lock_wait_s) == ("there", "mem", 2), name
        assert (config.buffer.token_limit, config.buffer.fold_ratio) == (4000, 0.5), name
        assert config.long_term.enabled is False, name
        assert config.models.api_key.reveal() == "sk-secret", name
        assert "sk-secret" not in repr(config), name


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2.33: what is wrong with a value, in plain words, and which environment variable it is."""
    for variable, text, said in (
        ("REMORA_BUFFER__SIZE", "many", "buffer.size .* must be a whole number, not text"),
        ("REMORA_BUFFER__SIZE", "0", "buffer.size .* must be over 0, not 0"),
        ("REMORA_JOURNAL__DURABILITY", "most", "journal.durability must be one of power"),
        ("REMORA_LOCK_WAIT_S", "long", "lock_wait_s .* must be a number, not text"),
        ("REMORA_BUFFER__SIZES", "3", "key buffer.sizes.* did you mean buffer.size"),
    ):
        with pytest.raises(ConfigError, match=said) as given:
            Config.from_environment({variable: text})
        assert f"the environment variable {variable}" in str(given.value)
        with monkeypatch.context() as own:
            own.setenv(variable, text)
            with pytest.raises(ConfigError, match=said):
                Config.from_environment()


def test_files_that_are_none(tmp_path: Path) -> None:
    """S2.33, S2.34: a bad file is named, with the line of a mistake, which is not quoted: it may
    hold a secret.
    """
    for name, text, said in (
        ("c.ini", "", r"c\.ini"),
        ("c.toml", "= =", r"c\.toml"),
        ("c.yaml", "a: [", r"c\.yaml"),
        (
            "c.yaml",
            f"models:\n  api_key: [{HIDDEN}\nbuffer: {{}}\n",
            r"c\.yaml: line 3, column ",
        ),
    ):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(ConfigError, match=said) as caught:
            Config.from_file(path)
        assert HIDDEN not in str(caught.value)
        assert caught.value.__cause__ is None or not text.startswith("models")
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


@pytest.mark.cold
def test_missing_extra_names_its_install() -> None:
    """S4.29: without the extra, the error is the command that installs it."""
    program = (
        "import sys; sys.modules['httpx2'] = None; import anyio, remora\n"
        "config = remora.Config.from_dict({'models': {'embedder': 'openai'}})\n"
        "anyio.run(remora.Runtime.in_memory(config=config).start)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip().endswith(
        "remora.errors.ConfigError: models.embedder: an endpoint over HTTP needs httpx2: pip "
        'install "remora[openai]"'
    )


# -- numbers ---------------------------------------------------------------------------------------

MAY_BE_ZERO = {
    "buffer.dedup_window",
    "buffer.summary_tokens",
    "context.instructions_share",
    "cluster.linger_s",
    "importance.weight",
    "long_term.batch_ms",
    "long_term.gather_s",
    "long_term.max_user_rows",
    "recall.answer_bonus",
    "recall.identifier_bonus",
    "retention.forgotten_s",
    "recall.unindexed_rows",
    "recall.cache",
    "recall.hot_mb",
    "recall.list_spread",
    "recall.neighbour_bonus",
    "recall.near_words",
    "recall.question_penalty",
    "recall.floor",
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


def test_every_field_checks_its_type_and_its_bounds() -> None:
    """S0.05, S2.33: a value of another type is refused in every field, and the field is named; in
    every numeric one a negative number, and zero, unless it means something there.
    """
    may_be_zero = set(MAY_BE_ZERO)
    for section, key, kind in fields():
        dotted = f"{section}.{key}"
        with pytest.raises(ConfigError) as caught:
            Config.from_dict({section: {key: 3 if kind == tuple[str, ...] else ["a", "list"]}})
        assert caught.value.key == dotted
        assert dotted in str(caught.value)
        if get_origin(kind) is Literal:
            assert f"{key} must be one of {', '.join(get_args(kind))}, not" in str(caught.value)
        if kind not in {int, float}:
            continue
        bad: list[Any] = [-1, *([math.nan, math.inf, -0.5] if kind is float else [])]
        if dotted in may_be_zero:
            may_be_zero.remove(dotted)
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
    assert not may_be_zero, "no such fields"


# -- secrets ---------------------------------------------------------------------------------------


def test_secret_never_prints() -> None:
    """S2.34: no way of making a text of it shows what it holds; only `reveal` does. Equal secrets
    are equal and hash alike, an empty one is false, and no text equals one.
    """
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
    assert Secret("a") == Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert not Secret()
    assert str(Secret()) == ""
    assert Secret("a") != "a"
    not_text: Any = 7
    with pytest.raises(TypeError, match="int"):
        Secret(not_text)


def test_interpolation() -> None:
    """S2.34: a secret comes from the mapping, else from the environment, whole or within a text,
    and is not expanded again. What is no mapping is refused, and not shown.
    """
    rows: tuple[tuple[str, dict[str, str] | None, dict[str, str], str], ...] = (
        (KEY, {"KEY": HIDDEN}, {}, HIDDEN),
        ("${{secrets.KEY}}", None, {"KEY": HIDDEN}, HIDDEN),
        (KEY, {"KEY": HIDDEN}, {"KEY": "other"}, HIDDEN),
        (KEY, {"OTHER": "x"}, {"KEY": HIDDEN}, HIDDEN),
        ("s3://u:${{ secrets.A }}@h/${{ secrets.B }}", {"A": "1", "B": "2"}, {}, "s3://u:1@h/2"),
        (KEY, {"KEY": "${{ secrets.NO }}"}, {}, "${{ secrets.NO }}"),
        ("in the open", None, {}, "in the open"),
    )
    for text, secrets, environment, held in rows:
        config = Config.from_dict(_key(text), secrets=secrets, environment=environment)
        assert config.models.api_key.reveal() == held, text
        assert "hunter2" not in repr(config), text
    not_a_mapping: Any = HIDDEN
    with pytest.raises(ConfigError, match="mapping of names") as caught:
        Config.from_dict({}, secrets=not_a_mapping)
    assert HIDDEN not in str(caught.value)


def test_a_runtime_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S2.33, S2.34: it takes its configuration from a file, and the environment over it. A file
    names secrets, the caller or the environment has them, a variable may name one too, and no log
    shows them.
    """
    path = tmp_path / "remora.yaml"
    path.write_text('directory: somewhere\nmodels: {api_key: "${{ secrets.MODEL_KEY }}"}\n')
    monkeypatch.setenv("REMORA_MAILBOX__TIMEOUT_S", "7.5")
    monkeypatch.setenv("REMORA_LONG_TERM__URI", "s3://bucket?token=${{ secrets.STORE_TOKEN }}")
    monkeypatch.setenv("STORE_TOKEN", HIDDEN)
    config = Runtime.from_file(path, secrets={"MODEL_KEY": HIDDEN}).config
    assert (config.directory, config.mailbox.timeout_s) == ("somewhere", 7.5)
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
    """S2.33, S2.02: the document's whole tree, from YAML, becomes remora's own keys, and its
    defaults are remora's; its dimension is the endpoint's, the default embedder has one of its own.
    """
    path = tmp_path / "memory.yaml"
    path.write_text(MUXI)
    config = Config.from_file(path, secrets={"MEMORY_URI": "s3://bucket/memory"}, environment={})
    assert config == Config.from_dict(
        {
            "buffer": {"policy": "ring", "size": 50, "multiplier": 10, "vector_search": True},
            "models": {
                "embedder": "openai",
                "embedding_model": "text-embedding-3-small",
                "embedding_dimension": 1536,
            },
            "working": {"max_memory_mb": 10, "fifo_interval_min": 5},
            "long_term": {"uri": "s3://bucket/memory", "enabled": True},
            "synopsis": {
                "identity_ttl": 604_800,
                "context_ttl": 3_600,
                "refresh_on_access": True,
            },
        }
    )
    assert msgspec.structs.replace(config.buffer, policy=Config().buffer.policy) == Config().buffer
    assert (config.working, config.synopsis) == (Config().working, Config().synopsis)
    plain = Config().models
    assert (plain.embedder, plain.embedding_model, plain.embedding_dimension) == (
        "wordllama",
        "text-embedding-3-small",
        1536,
    )
    assert Config().long_term.enabled is True


def test_muxi_values_arrive() -> None:
    """S2.33: each key that can vary changes the one that stands for it."""
    buffer = {"size": 7, "multiplier": 3, "vector_search": False}
    working = {"max_memory_mb": 2.5, "fifo_interval_min": 1}
    synopsis = {"identity_ttl": 60, "context_ttl": 6, "refresh_on_access": False}
    config = Config.from_dict(
        {
            "memory": {
                "buffer": {**buffer, "embedding_model": "wordllama"},
                "working": {**working, "vector_dimension": 64},
                "persistent": {"enabled": False, "connection_string": "elsewhere"},
                "synopsis": synopsis,
            }
        }
    )
    assert config == Config.from_dict(
        {
            "buffer": {**buffer, "policy": "ring"},
            "working": working,
            "models": {"embedder": "wordllama", "embedding_dimension": 64},
            "long_term": {"enabled": False, "uri": "elsewhere"},
            "synopsis": synopsis,
        }
    )
    assert (config.buffer.size, config.models.embedding_dimension) == (7, 64)


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
