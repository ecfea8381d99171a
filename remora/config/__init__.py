"""The configuration: a tree of frozen structs, each default with its reason.

`Config()` is what runs if nothing is configured. A tree is read from a dict, a TOML, YAML or JSON
file, and the environment; an unknown key is refused, and the error names the nearest known one.
``remora config --defaults`` prints the docstring under each key above it.
"""

from __future__ import annotations

from remora.config.secrets import Secret
from remora.config.sections import (
    ActivationConfig,
    AttachmentsConfig,
    BufferConfig,
    ClusterConfig,
    ContextConfig,
    Durability,
    FactsConfig,
    ImportanceConfig,
    JournalConfig,
    LongTermConfig,
    MailboxConfig,
    ModelConfig,
    ObjectStoreConfig,
    RecallConfig,
    RetentionConfig,
    StateConfig,
    SupervisorConfig,
    SynopsisConfig,
    TokensConfig,
    TurnConfig,
    WorkingConfig,
)
from remora.config.tree import Config
from remora.faces import publish

__all__ = [
    "ActivationConfig",
    "AttachmentsConfig",
    "BufferConfig",
    "ClusterConfig",
    "Config",
    "ContextConfig",
    "Durability",
    "FactsConfig",
    "ImportanceConfig",
    "JournalConfig",
    "LongTermConfig",
    "MailboxConfig",
    "ModelConfig",
    "ObjectStoreConfig",
    "RecallConfig",
    "RetentionConfig",
    "Secret",
    "StateConfig",
    "SupervisorConfig",
    "SynopsisConfig",
    "TokensConfig",
    "TurnConfig",
    "WorkingConfig",
]

publish(__name__, __all__, globals())
