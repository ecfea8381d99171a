"""Which HTTP status an error of remora is answered with."""

from __future__ import annotations

import math
from collections.abc import Mapping

from remora import errors

_ANSWERS: Mapping[type[errors.RemoraError], tuple[int, int | None]] = {
    errors.NoDeadLetter: (404, None),
    errors.NoSuchMemory: (404, None),
    errors.NotFound: (404, None),
    errors.ConfigError: (500, None),
    errors.InvalidInput: (400, None),
    errors.InvalidMessage: (400, None),
    errors.IdConflict: (409, None),
    errors.KeyConflict: (409, None),
    errors.NotGranted: (403, None),
    errors.StateConflict: (409, None),
    errors.TurnClosed: (409, None),
    errors.KeyRefused: (401, None),
    errors.MailboxFull: (429, 1),
    errors.RateLimited: (429, 1),
    errors.SessionQuarantined: (503, 1),
    errors.OverdraftReached: (429, 5),
    errors.SessionBusy: (429, 5),
    errors.ErasureInProgress: (409, 5),
    errors.OutcomeUnknown: (503, 1),
    errors.OwnerUnreachable: (503, 1),
    errors.OwnerFailed: (503, 10),
    errors.CommitFailed: (503, 5),
    errors.RecordingFailed: (503, 5),
    errors.RuntimeClosed: (503, 5),
    errors.OwnershipLost: (503, 30),
    errors.DirectoryUnusable: (500, None),
    errors.ErasureDelayed: (503, 30),
    errors.ModelError: (502, None),
    errors.ModelTimeout: (504, 5),
    errors.ModelUnavailable: (503, 5),
}


def http_status(error: errors.RemoraError) -> tuple[int, int | None]:
    """The HTTP status for an error, and for `Retry-After` the seconds until a retry makes sense.

    None where none does. What may be retried wrote nothing, or is recognized by its idempotency
    key. The text of an error from 500 on may name files or quote a log: tell clients its type::

        status, wait_s = remora.http_status(error)
        headers = {} if wait_s is None else {"Retry-After": str(wait_s)}
    """
    kind = next((one for one in type(error).__mro__ if one in _ANSWERS), None)
    if kind is None:
        return (503, 5) if error.retryable else (500, None)
    status, wait_s = _ANSWERS[kind]
    if isinstance(error, (errors.SessionQuarantined, errors.RateLimited)):
        wait_s = max(math.ceil(error.retry_after_s), 1)
    return status, wait_s
