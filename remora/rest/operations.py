"""All that can be asked, besides health and the description."""

from __future__ import annotations

from remora.rest.job_operations import JOB_OPERATIONS
from remora.rest.operation import Operation
from remora.rest.session_operations import SESSION_OPERATIONS
from remora.rest.shared_operations import SHARED_OPERATIONS
from remora.rest.state_operations import STATE_OPERATIONS
from remora.rest.user_operations import USER_OPERATIONS

OPERATIONS: tuple[Operation, ...] = (
    *SESSION_OPERATIONS,
    *USER_OPERATIONS,
    *STATE_OPERATIONS,
    *SHARED_OPERATIONS,
    *JOB_OPERATIONS,
)
"""A path's fixed parts are looked at before names: those that have more of them come first."""
