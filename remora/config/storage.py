"""Configuration of what is stored: the journal, its retention, long-term memory."""

from typing import Literal, TypeAlias

from remora.config.secrets import Secret
from remora.config.section import Section
from remora.errors import ConfigError

Durability: TypeAlias = Literal["power", "process", "none"]
SHORTEST_LEASE_S = 1.0
LONGEST_LEASE_S = 86_400.0


class JournalConfig(Section, frozen=True, kw_only=True):
    """The write-ahead journal."""

    durability: Durability = "power"
    """power: fsync at each commit, an acknowledged message survives power loss. process: it
    survives kill -9. none: nothing is promised."""
    max_batch_writes: int = 8_192
    """Writes joined in one group commit."""
    max_wal_mb: int = 64
    """Size of the write-ahead log above which a warning says that some reader holds it back."""
    max_import_mb: float = 256.0
    """Largest session of an import of Parquet files, or user without the sessions: its texts, and
    half a kilobyte a row. It is read and committed as a whole, and small files may hold a lot."""
    dsn: Secret = Secret()
    """The journal is in this PostgreSQL, postgresql://user@host/database, and not in the
    directory."""
    schema: str = "remora"
    """The schema of that database that has the journal, and nothing else."""
    memory: str = ""
    """Whose journal it is: a schema that was made under one name is opened under no other."""
    lease_s: float = 10.0
    """An owner of that journal that renews nothing is replaced after so long: 1 s to a day."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not SHORTEST_LEASE_S <= self.lease_s <= LONGEST_LEASE_S:
            raise ConfigError(
                f"lease_s must be {SHORTEST_LEASE_S:g} to {LONGEST_LEASE_S:,.0f}, not "
                f"{self.lease_s:g}",
                key="lease_s",
            )


class RetentionConfig(Section, frozen=True, kw_only=True):
    """How long messages stay archived that left their buffer and are indexed; 0 is no bound."""

    age_days: float = 0.0
    """Older ones are removed."""
    session_messages: int = 0
    """Most archived messages of one session; the oldest are removed first."""
    total_mb: float = 0.0
    """Most archived megabytes of all sessions together; the oldest are removed first."""
    interval_s: float = 3_600.0
    """How often the supervisor applies these bounds."""
    deleted_s: float = 3_600.0
    """How long files may hold the bytes of what was deleted one by one. Then they are rewritten,
    and the journal is vacuumed: the shorter, the more often."""
    forgotten_s: float = 60.0
    """How long files may hold the bytes of users and sessions that are forgotten one after
    another: the receipt then has `erased_by`. 0: `forget` always returns when no byte is left."""


class ObjectStoreConfig(Section, frozen=True, kw_only=True):
    """How long-term memory at an object store (`long_term.uri: s3://…`) is reached.

    What is empty is taken from the environment, as the tools of that store do: AWS_ENDPOINT_URL,
    AWS_REGION, AWS_ACCESS_KEY_ID, a role of the machine.
    """

    endpoint: str = ""
    """Address of the server, where it is not Amazon's: https://host:port. On loopback it may be
    http://."""
    region: str = ""
    """Where the bucket is; Amazon needs it."""
    access_key_id: Secret = Secret()
    """Name of the access key."""
    secret_access_key: Secret = Secret()
    """The access key itself."""
    session_token: Secret = Secret()
    """What belongs to a key that expires."""
    allow_http: bool = False
    """An endpoint elsewhere than on loopback may be http://: texts and keys then cross the network
    in the clear."""


class LongTermConfig(Section, frozen=True, kw_only=True):
    """Long-term memory in LanceDB."""

    enabled: bool = True
    """Without it, messages that leave the buffer are summarized and archived, and nothing can be
    recalled."""
    shards: int = 8
    """Tables over which users are hashed; fixed when the directory is created."""
    batch_rows: int = 5_000
    """Rows in one commit."""
    batch_ms: float = 100.0
    """How long rows wait for others before they are committed; again and again while others come,
    for up to two seconds."""
    gather_s: float = 60.0
    """How long messages that left a buffer wait for others, to be indexed together: until there are
    `batch_rows`, half of `recall.unindexed_rows` of one user, or nothing was written for half a
    second. They are recalled all the same; where `recall.unindexed_rows` is 0 they do not wait. 0
    indexes them one compaction at a time."""
    compact_fragments: int = 20
    """Commits to a shard after which it is compacted: each slows every search a little."""
    compact_interval_s: float = 30.0
    """How often the supervisor looks for shards to compact."""
    keep_versions_s: float = 120.0
    """Age at which old table versions are removed; readers need them for a while."""
    index_user_rows: int = 2_000
    """Rows in a shard above which the user column is indexed."""
    tune_allocators: bool = True
    """Keep memory flat by settings of the whole process: pyarrow's default pool becomes the C
    library's, glibc has two arenas at most, and free memory returns to the system after writes.
    What the host or the environment has set stays."""
    window_chars: int = 300
    """How much of each neighbouring message is searched along with a message."""
    language: Literal["en", "de", "fr", "es", "it", "pt", "nl", "sv", "da", "no", "tr", "ru"] = "en"
    """Language of texts that do not show theirs: names, short replies. Others are searched by the
    words of the language that they are in, whatever this says. It counts for what is indexed from
    then on."""
    uri: Secret = Secret()
    """Where LanceDB lives: a path or an object store's address. Empty means inside the
    directory."""
    object_store: ObjectStoreConfig = ObjectStoreConfig()
    max_user_rows: int = 0
    """A user's rows beyond this number are pruned by the supervisor; 0: never."""
    prune: Literal["fifo", "age", "importance", "lru"] = "importance"
    """Which rows are pruned first."""
    prune_interval_s: float = 3_600.0
    """How often the supervisor looks for users with too many rows."""
    max_age_days: float = 365.0
    """Rows older than this are pruned first, if `prune` is `age`."""
