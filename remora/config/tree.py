"""The whole configuration."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args, get_origin

import msgspec

from remora.config.muxi import require_section, unknown_key
from remora.config.secrets import Secret, refers_to_secret, resolve_secret
from remora.config.sections import (
    ActivationConfig,
    AttachmentsConfig,
    BackgroundConfig,
    BufferConfig,
    ClusterConfig,
    ContextConfig,
    FactsConfig,
    ImportanceConfig,
    JournalConfig,
    LongTermConfig,
    MailboxConfig,
    ModelConfig,
    RecallConfig,
    RetentionConfig,
    Section,
    StateConfig,
    SupervisorConfig,
    SynopsisConfig,
    TokensConfig,
    TurnConfig,
    WorkingConfig,
)
from remora.errors import ConfigError


class Config(Section, frozen=True, kw_only=True):
    """The configuration of a runtime: sections of keys, each with a default.

    Raises:
        ConfigError: a value is out of range.
    """

    directory: str = "remora-memory"
    """The directory that holds everything, unless the runtime is given one."""
    lock_wait_s: float = 10.0
    """How long opening waits for another process to leave the directory, as in a graceful reload;
    0: not at all."""
    buffer: BufferConfig = BufferConfig()
    turns: TurnConfig = TurnConfig()
    state: StateConfig = StateConfig()
    mailbox: MailboxConfig = MailboxConfig()
    activation: ActivationConfig = ActivationConfig()
    journal: JournalConfig = JournalConfig()
    retention: RetentionConfig = RetentionConfig()
    long_term: LongTermConfig = LongTermConfig()
    working: WorkingConfig = WorkingConfig()
    synopsis: SynopsisConfig = SynopsisConfig()
    facts: FactsConfig = FactsConfig()
    importance: ImportanceConfig = ImportanceConfig()
    recall: RecallConfig = RecallConfig()
    context: ContextConfig = ContextConfig()
    models: ModelConfig = ModelConfig()
    supervisor: SupervisorConfig = SupervisorConfig()
    background: BackgroundConfig = BackgroundConfig()
    tokens: TokensConfig = TokensConfig()
    attachments: AttachmentsConfig = AttachmentsConfig()
    cluster: ClusterConfig = ClusterConfig()

    @classmethod
    def from_dict(
        cls,
        tree: Mapping[str, Any],
        *,
        secrets: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Make a configuration of a nested dict. MUXI's own keys are understood under ``memory``.

        Args:
            tree: sections of keys.
            secrets: values for ``${{ secrets.NAME }}``, which fields of type `Secret` may hold.
            environment: where a name that is not in `secrets` is looked up; the process's own by
                default. Nothing else is read from it: see `from_file` and `from_environment`.

        Raises:
            ConfigError: an unknown key (the error names the nearest known one), a value of the
                wrong type or range, a secret without a value, or one in a field that would be
                printed.
        """
        return build(cls, tree, variables={}, secrets=secrets, environment=environment)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        secrets: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Read ``.toml``, ``.yaml``, ``.yml`` or ``.json``; the environment takes precedence.

        ``REMORA_BUFFER__TOKEN_LIMIT=4000`` sets ``buffer.token_limit``. See `from_dict` for
        `secrets`.

        Raises:
            ConfigError: the file cannot be read, has another format or a syntax error, or see
                `from_dict`.
        """
        tree = decode_file(Path(path))
        return build(cls, tree, variables=environment, secrets=secrets, environment=environment)

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str] | None = None,
        *,
        secrets: Mapping[str, str] | None = None,
    ) -> Self:
        """The defaults, changed by ``REMORA_SECTION__KEY`` variables.

        Raises:
            ConfigError: see `from_dict`.
        """
        return build(cls, {}, variables=environment, secrets=secrets, environment=environment)


# -- reading a configuration: files, dicts, the environment, and secrets ---------------------------

_Tree = TypeVar("_Tree", bound=msgspec.Struct)
_DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    ".toml": msgspec.toml.decode,
    ".yaml": msgspec.yaml.decode,
    ".yml": msgspec.yaml.decode,
    ".json": msgspec.json.decode,
}
_EXPECTED = re.compile("Expected `([^`]+)`, got `([^`]+)`")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a section of keys",
    "null": "nothing",
}


def decode_file(path: Path) -> object:
    """The content of a configuration file; an empty dict for an empty file.

    Raises:
        ConfigError: no such file, another format, or a syntax error.
    """
    try:
        data = path.read_bytes()
    except OSError as e:
        raise ConfigError(f"cannot read the configuration {path}: {e.strerror}") from e
    decode = _DECODERS.get(path.suffix)
    if decode is None:
        raise ConfigError(f"{path} must end in {', '.join(_DECODERS)}")
    try:
        tree = decode(data)
    except (msgspec.DecodeError, ValueError) as e:
        raise ConfigError(f"{path}: {_syntax_problem(e)}") from None
    return {} if tree is None else tree


def _plain_problem(text: str) -> str:
    """Return what msgspec says of a value, after the name of its key."""
    found = _EXPECTED.fullmatch(text)
    if found is None:
        return f": {text[:1].lower()}{text[1:]}"
    wanted, given = (
        " or ".join(_KINDS.get(one, one) for one in kinds.split(" | ")) for kinds in found.groups()
    )
    return f" must be {wanted}, not {given}"


def _syntax_problem(error: Exception) -> str:
    """Return what is wrong and where, without the line itself: it may hold a secret."""
    cause = error.__context__
    mark = getattr(cause, "problem_mark", None)
    if mark is None:
        return str(error)
    return f"line {mark.line + 1}, column {mark.column + 1}: {getattr(cause, 'problem', '')}"


def build(
    kind: type[_Tree],
    source: object,
    *,
    variables: Mapping[str, str] | None,
    secrets: Mapping[str, str] | None,
    environment: Mapping[str, str] | None,
) -> _Tree:
    """The configuration that a tree of plain values describes.

    Args:
        kind: the whole tree's type.
        source: sections of keys.
        variables: ``REMORA_SECTION__KEY`` variables that take precedence; None for the process's.
        secrets: where the name of a secret is looked up first.
        environment: where it is looked up next; None for the process's.

    Raises:
        ConfigError: an unknown key, a bad value, or a secret without a value.
    """
    if not isinstance(source, Mapping):
        raise ConfigError(
            f"the configuration must be a mapping of sections, not {type(source).__name__}"
        )
    if secrets is not None and not isinstance(secrets, Mapping):
        raise ConfigError(
            f"secrets must be a mapping of names to texts, not {type(secrets).__name__}"
        )
    tree, written_as = _translate(source)
    tree, from_variables = _apply_environment(
        tree, kind, os.environ if variables is None else variables
    )
    written_as = {**written_as, **from_variables}
    resolve = partial(
        resolve_secret,
        secrets=secrets,
        environment=os.environ if environment is None else environment,
    )
    try:
        checked = _check_keys(tree, kind, "", resolve, kind)
    except ConfigError as e:
        if e.key not in from_variables:
            raise
        raise ConfigError(f"{e} ({from_variables[e.key]})", key=e.key) from e
    try:
        return msgspec.convert(checked, kind, dec_hook=_dec_hook)
    except msgspec.ValidationError as e:
        # msgspec: "what - at `$.section.key`"; our own check: "key must …", for the whole section
        text, _, at = str(e).partition(" - at `$")
        key = at.strip(".`")
        if isinstance(e.__cause__, ConfigError):
            text = str(e.__cause__).removeprefix(e.__cause__.key)
            key = f"{key}.{e.__cause__.key}".lstrip(".")
        else:
            text = _plain_problem(text)
        written = f" (written as {written_as[key]})" if key in written_as else ""
        raise ConfigError(f"{key}{written}{text}", key=key) from e


def _translate(source: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, str]]:
    """The tree with remora's own keys, and how each translated key was written."""
    tree = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in source.items()
    }
    if "memory" not in tree:
        return tree, {}
    from remora.config.muxi import translate_muxi  # noqa: PLC0415  # only for trees of MUXI

    return tree, translate_muxi(tree)


def _dec_hook(kind: type, value: object) -> object:
    if kind is Secret and isinstance(value, Secret):
        return value
    raise TypeError(f"expected text, not {type(value).__name__}")


def _secret_keys(kind: type[msgspec.Struct], path: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        if field.type is Secret:
            yield f"{path}{field.name}"
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _secret_keys(field.type, f"{path}{field.name}.")


def _check_keys(
    tree: Mapping[str, Any],
    kind: type[msgspec.Struct],
    path: str,
    resolve: Callable[..., Secret],
    root: type[msgspec.Struct],
) -> dict[str, Any]:
    """The tree with its secrets resolved; unknown keys and misplaced secrets are refused."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    checked: dict[str, Any] = {}
    for key, value in tree.items():
        dotted = f"{path}{key}"
        if key not in fields:
            raise unknown_key(path, key, fields)
        wanted = fields[key]
        if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
            section = require_section(value, dotted)
            checked[key] = _check_keys(section, wanted, f"{dotted}.", resolve, root)
        elif wanted is Secret and isinstance(value, str):
            checked[key] = resolve(value, key=dotted)
        elif isinstance(value, str) and refers_to_secret(value):
            allowed = ", ".join(_secret_keys(root))
            raise ConfigError(
                f"{dotted} may not hold a secret: it would be printed; these may: {allowed}",
                key=dotted,
            )
        elif get_origin(wanted) is Literal and value not in get_args(wanted):
            choices = ", ".join(get_args(wanted))
            raise ConfigError(f"{dotted} must be one of {choices}, not {value!r}", key=dotted)
        else:
            checked[key] = value
    return checked


def _apply_environment(
    tree: Mapping[str, Any], kind: type[msgspec.Struct], variables: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The tree with the variables, and how each key of theirs was written."""
    merged: dict[str, Any] = dict(tree)
    written_as: dict[str, str] = {}
    sections = {field.name: field.type for field in msgspec.structs.fields(kind)}
    plain = {name for name, section in sections.items() if section in {str, float}}
    for variable, text in variables.items():
        part, separator, key = variable.removeprefix("REMORA_").lower().partition("__")
        if not variable.startswith("REMORA_"):
            continue
        if not separator:  # REMORA_DIRECTORY; other names may be other programs'
            if part in plain:
                merged[part] = _parse_variable(text, sections[part])
                written_as[part] = f"the environment variable {variable}"
            continue
        section = sections.get(part)
        kinds: dict[str, Any] = {}
        if isinstance(section, type) and issubclass(section, msgspec.Struct):
            kinds = {field.name: field.type for field in msgspec.structs.fields(section)}
        target = merged.setdefault(part, {})
        if isinstance(target, dict):
            target[key] = _parse_variable(text, kinds.get(key, str))
            written_as[f"{part}.{key}"] = f"the environment variable {variable}"
    return merged, written_as


def _parse_variable(text: str, kind: object) -> object:
    """The text as the type of its key; text that does not parse is left for the later check."""
    if kind is Secret or (get_origin(kind) is Literal and text in get_args(kind)):
        return text
    try:
        return msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError:
        return text
