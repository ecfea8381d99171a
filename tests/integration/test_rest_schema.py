"""The service does what its OpenAPI description says: requests are generated from it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from remora.rest.keys import add_key
from remora.rest.openapi import describe_service
from remora.rest.operations import OPERATIONS
from tests.integration.test_client import free_port, serving

schemathesis = pytest.importorskip("schemathesis")
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = pytest.mark.blocking
CHECKS = [
    content_type_conformance,
    negative_data_rejection,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]
"""Not that whatever fits the description is accepted: JSON Schema cannot say what a chat message
is, nor which memory types there are.
"""
schema = schemathesis.openapi.from_dict(describe_service(OPERATIONS))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a server process, and a key."""
    path = tmp_path_factory.mktemp("service")
    keys, port = path / "keys.txt", free_port()
    key = add_key(keys, "shop")
    process: subprocess.Popen[str]
    with serving(path / "memory", keys, port) as process:
        yield f"http://127.0.0.1:{port}", key
        assert process.poll() is None


@schema.parametrize()
@settings(max_examples=20, suppress_health_check=list(HealthCheck), deadline=None)
def test_requests_of_the_description(case: Any, service: tuple[str, str]) -> None:
    address, key = service
    headers = {**(case.headers or {}), "Authorization": f"Bearer {key}"}
    answer = case.call(base_url=address, headers=headers)
    too_long = answer.status_code == 413  # which schemathesis does not count as a rejection
    checks = [one for one in CHECKS if not (too_long and one is negative_data_rejection)]
    case.validate_response(answer, checks=checks)
