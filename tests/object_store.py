"""An S3 server on loopback for tests: moto's, with faults that a test can switch on."""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from remora.config import ObjectStoreConfig, Secret

__all__ = ["ObjectServer", "serve_objects"]

_DENIED = (
    b'<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>'
)
_SLOW = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>later</Message></Error>'


class ObjectServer:
    """A server with a bucket.

    Attributes:
        requests: requests so far, by method.
        away: whether it answers 503.
        denied: methods that it refuses.
        unanswered: methods whose requests it does, and answers with 503.
        faults: requests that it answered with one of these faults.
        conditional: whether it honours If-None-Match.
        gate: called before each request with its method and path; it may block.
    """

    def __init__(self, app: Callable[..., Iterable[bytes]] | None, endpoint: str) -> None:
        self.requests: Counter[str] = Counter()
        self.away = False
        self.denied: frozenset[str] = frozenset()
        self.unanswered: frozenset[str] = frozenset()
        self.faults = 0
        self.conditional = True
        self.gate: Callable[[str, str], None] | None = None
        self.endpoint = endpoint
        self.bucket = "memory"
        self.faulty = app is not None
        """Whether faults are to be had, and requests are counted."""
        self._app = app
        self._counting = threading.Lock()
        self._server: Any = None
        self._thread = threading.Thread()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        with self._counting:
            self.requests[method] += 1
        if self.gate is not None:
            self.gate(method, path)
        lost = method in self.unanswered
        if lost:
            assert self._app is not None
            for _ in self._app(environ, lambda *_: None):
                pass
        if self.away or lost:
            self.faults += 1
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [_SLOW]
        if method in self.denied:
            self.faults += 1
            start("403 Forbidden", [("Content-Type", "application/xml")])
            return [_DENIED]
        if not self.conditional:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        assert self._app is not None
        return self._app(environ, start)

    def start(self) -> None:
        """Take connections, at the address from before if it was stopped."""
        from werkzeug.serving import make_server  # noqa: PLC0415

        port = int(self.endpoint.rpartition(":")[2] or 0)
        self._server = make_server("127.0.0.1", port, self, threaded=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Take no more connections. Objects stay; so do connections, which `away` answers."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def address(self) -> str:
        """A new prefix in the bucket."""
        return f"s3://{self.bucket}/{uuid4().hex}"

    @property
    def config(self) -> ObjectStoreConfig:
        """How the server is reached."""
        return ObjectStoreConfig(
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id=Secret(os.environ.get("REMORA_TEST_S3_KEY", "test")),
            secret_access_key=Secret(os.environ.get("REMORA_TEST_S3_SECRET", "test")),
        )

    @contextmanager
    def counted(self) -> Iterator[Counter[str]]:
        """The requests of a block."""
        before, made = Counter(self.requests), Counter[str]()
        yield made
        made.update(self.requests - before)


@contextmanager
def serve_objects() -> Iterator[ObjectServer]:
    """Run a server with an empty bucket; REMORA_TEST_S3 names another one to use instead.

    Its value is an endpoint, http://127.0.0.1:9000; REMORA_TEST_S3_KEY and REMORA_TEST_S3_SECRET
    are its credentials. Faults are not to be had there, nor are requests counted.
    """
    if endpoint := os.environ.get("REMORA_TEST_S3"):
        served = ObjectServer(None, endpoint)
        _make_bucket(served)
        yield served
        return
    import moto.backends  # noqa: PLC0415  # half a second
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415
        DomainDispatcherApplication,
        create_backend_app,
    )

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto.backends.get_backend("s3").reset()
    served = ObjectServer(DomainDispatcherApplication(create_backend_app), "")
    served.start()
    try:
        _make_bucket(served)
        yield served
    finally:
        served.stop()


def _make_bucket(server: ObjectServer) -> None:
    import boto3  # noqa: PLC0415  # it comes with moto
    from botocore.config import Config  # noqa: PLC0415

    config = server.config
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name=config.region,
        aws_access_key_id=config.access_key_id.reveal(),
        aws_secret_access_key=config.secret_access_key.reveal(),
        config=Config(s3={"addressing_style": "path"}),
    )
    client.create_bucket(Bucket=server.bucket)
