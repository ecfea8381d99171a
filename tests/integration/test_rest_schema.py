"""The service does what its OpenAPI description says: requests are generated from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from remora.rest.keys import add_key
from remora.rest.openapi import describe_service
from remora.rest.operations import OPERATIONS
from tests.example_runs import LONG
from tests.processes import http_server


@pytest.mark.blocking
def test_requests_of_the_description(tmp_path: Path) -> None:
    """Not that whatever fits it is accepted: JSON Schema cannot say what a chat message is, nor
    which memory types there are.
    """
    pytest.importorskip("schemathesis")
    import requests  # noqa: PLC0415
    import schemathesis  # noqa: PLC0415  # it takes a second to import
    from schemathesis.checks import not_a_server_error  # noqa: PLC0415
    from schemathesis.generation.hypothesis import builder  # noqa: PLC0415
    from schemathesis.specs.openapi import checks  # noqa: PLC0415

    wanted = [
        checks.content_type_conformance,
        checks.negative_data_rejection,
        not_a_server_error,
        checks.response_headers_conformance,
        checks.response_schema_conformance,
        checks.status_code_conformance,
    ]
    schema = schemathesis.openapi.from_dict(describe_service(OPERATIONS))
    # as its pytest plugin makes a test: examples of the description, edges of each type, and chance
    config = builder.HypothesisTestConfig(schema.config, list(builder.HypothesisTestMode))
    keys = tmp_path / "keys.txt"
    key, every = add_key(keys, "shop"), list(HealthCheck)

    def try_operation(operation: Any, address: str) -> None:
        @settings(max_examples=20 if LONG else 5, derandomize=False, suppress_health_check=every)
        def conforms(case: Any) -> None:
            headers = {**(case.headers or {}), "Authorization": f"Bearer {key}"}
            answer = case.call(base_url=address, session=session, headers=headers, timeout=None)
            too_long = answer.status_code == 413  # which schemathesis does not count as a rejection
            made = [
                one for one in wanted if not (too_long and one is checks.negative_data_rejection)
            ]
            case.validate_response(answer, checks=made)

        try:
            builder.create_test(operation=operation, test_func=conforms, config=config)()
        except BaseException as e:
            e.add_note(f"this is about {operation.label}")
            raise

    session = requests.Session()
    session.trust_env = False  # it would look for proxies and passwords at each request
    with session, http_server(tmp_path / "memory", keys) as (process, address):
        results: list[Any] = list(schema.get_all_operations())
        tried = [one.ok() for one in results]
        assert len(tried) >= len(OPERATIONS)
        for operation in tried:
            try_operation(operation, address)
        assert process.poll() is None
