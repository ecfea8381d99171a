"""The whole configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from remora.config.cluster import ClusterConfig
from remora.config.conversation import (
    AttachmentsConfig,
    BufferConfig,
    ContextConfig,
    StateConfig,
    TokensConfig,
    TurnConfig,
)
from remora.config.memory import (
    FactsConfig,
    ImportanceConfig,
    RecallConfig,
    SynopsisConfig,
    WorkingConfig,
)
from remora.config.models import ModelConfig
from remora.config.reading import build, decode_file
from remora.config.runtime import (
    ActivationConfig,
    BackgroundConfig,
    MailboxConfig,
    SupervisorConfig,
)
from remora.config.section import Section
from remora.config.storage import JournalConfig, LongTermConfig, RetentionConfig


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
