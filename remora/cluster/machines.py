"""The configuration of owners and workers on several machines."""

from __future__ import annotations

import hashlib
import hmac
import ssl
from pathlib import Path

import msgspec

from remora.config import Config
from remora.errors import ConfigError
from remora.system.sockets import is_loopback

_LEAST_SECRET = 32
_ANY = frozenset({"0.0.0.0", "::", "*", ""})  # noqa: S104  # compared with, not bound to


class Address(msgspec.Struct, frozen=True):
    """Host and port."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Machines(msgspec.Struct, frozen=True):
    """How processes on several machines find each other, and what they show.

    Attributes:
        dsn: of the database with the journals and their leases.
        schema: of the memory.
        shards: how many it has.
        secret: that all of them know.
        certificate: file that an owner shows; empty: it shows none.
        key: file with its private key.
        listen: where an owner listens; None where that is not configured.
        address: what workers are told; None for that of `listen`.
    """

    dsn: str
    schema: str
    shards: int
    secret: bytes
    certificate: str
    key: str
    listen: Address | None
    address: Address | None

    @property
    def fingerprint(self) -> str:
        """Tells two secrets apart, and nothing else of them."""
        return hmac.digest(self.secret, b"remora fingerprint", "sha256").hex()[:32]

    def uses_tls(self, address: Address) -> bool:
        """Return whether connections to this address are encrypted.

        Only those on loopback may not be.
        """
        return bool(self.certificate) or not is_loopback(address.host)

    def make_context(self) -> tuple[ssl.SSLContext | None, bytes]:
        """How an owner encrypts, and the digest of its certificate. Reads files: it blocks.

        Raises:
            ConfigError: a file cannot be used.
        """
        if not self.certificate:
            return None, b""
        try:
            text = Path(self.certificate).read_text()
            Path(self.key).read_bytes()  # ssl does not say which of the two it cannot read
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(self.certificate, self.key)
            begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
            first = text[text.index(begin) : text.index(end) + len(end)]
            return context, digest_of(ssl.PEM_cert_to_DER_cert(first))
        except (OSError, ValueError) as e:  # SSLError is an OSError
            raise ConfigError(
                f"cluster.certificate and cluster.key cannot be used ({e}): make them with openssl "
                "req -x509 -newkey ed25519 -nodes -subj /CN=remora -days 3650 -out cert.pem "
                "-keyout key.pem",
                key="cluster.certificate",
            ) from e


def digest_of(certificate: bytes) -> bytes:
    """Return what both ends know of a certificate (DER)."""
    return hashlib.sha256(certificate).digest()


def parse_address(text: str, key: str) -> Address:
    """An address that was configured, or that an owner wrote.

    Raises:
        ConfigError: it is none.
    """
    host, colon, port = text.rpartition(":")
    if colon and port.isdecimal() and len(port) < 20 and int(port) >= 1 << 16:
        raise ConfigError(f"{key}: there is no port {port}: the highest is 65535", key=key)
    if not colon or not port.isdecimal() or len(port) >= 20 or "/" in host:
        raise ConfigError(f"{key} must be like 10.0.0.5:7731, not {text!r:.80}", key=key)
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def read_machines(config: Config) -> Machines | None:
    """How this memory is shared by several machines; None if it is not.

    Raises:
        ConfigError: what is configured does not go together; the text says what to do.
    """
    cluster, journal = config.cluster, config.journal
    if not journal.dsn.reveal():
        if cluster.listen:
            raise ConfigError(
                "cluster.listen takes workers of other machines, and they need a journal in "
                "PostgreSQL: set journal.dsn, or leave cluster.listen out",
                key="cluster.listen",
            )
        return None
    if cluster.standby:
        raise ConfigError(
            "cluster.standby is for one machine: with journal.dsn, start `remora serve` on a "
            "second one as well",
            key="cluster.standby",
        )
    if cluster.owners is not None:
        raise ConfigError(
            "cluster.owners is for a memory in a directory: with journal.dsn, start `remora serve` "
            "as often as there are to be owners",
            key="cluster.owners",
        )
    if config.long_term.enabled and not config.long_term.uri.reveal():
        raise ConfigError(
            "long-term memory in the directory of one machine is not on the others: set "
            "long_term.uri to an object store that all of them reach, or long_term.enabled to "
            "false",
            key="long_term.uri",
        )
    secret = cluster.secret.reveal()
    if len(secret) < _LEAST_SECRET:
        raise ConfigError(
            f"cluster.secret must have {_LEAST_SECRET} characters or more, and be the same on all "
            "machines: openssl rand -hex 32 makes one",
            key="cluster.secret",
        )
    listen = parse_address(cluster.listen, "cluster.listen") if cluster.listen else None
    address = parse_address(cluster.address, "cluster.address") if cluster.address else None
    if listen is not None and listen.host in _ANY and address is None:
        raise ConfigError(
            f"cluster.listen is {listen}, all addresses of the machine: say in cluster.address "
            "which of them workers connect to",
            key="cluster.address",
        )
    if bool(cluster.certificate) is not bool(cluster.key):
        raise ConfigError(
            "cluster.certificate and cluster.key go together: set both", key="cluster.certificate"
        )
    for one in (listen, address):
        if one is not None and not is_loopback(one.host) and not cluster.certificate:
            raise ConfigError(
                f"{one} is reached over a network, so cluster.certificate and cluster.key are "
                "needed: openssl req -x509 -newkey ed25519 -nodes -subj /CN=remora -days 3650 "
                "-out cert.pem -keyout key.pem makes them; or listen on 127.0.0.1",
                key="cluster.certificate",
            )
    return Machines(
        journal.dsn.reveal(),
        journal.schema,
        1 if cluster.shards is None else cluster.shards,
        secret.encode(),
        cluster.certificate,
        cluster.key,
        listen,
        address,
    )
