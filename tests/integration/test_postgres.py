"""The journal in PostgreSQL: the suite that every journal passes, against a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from remora.testing.journals import AccessCheck, journal_checks
from tests.postgres import Cluster, PostgresAccess, running_cluster

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as found:
        yield found


@pytest.mark.parametrize(
    "check",
    journal_checks("owners", "commit_numbers", "connections", "late_commits", "processes"),
    ids=lambda check: check.__name__,
)
async def test_postgres(check: AccessCheck, cluster: Cluster) -> None:
    """S1.02, S3.26: PostgreSQL passes the suite, with all that it can do."""
    await check(PostgresAccess(cluster))
