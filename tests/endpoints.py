"""HTTP endpoints of others, on loopback, in a thread of the test's process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Answer", "Endpoint", "Handler", "listening", "started_endpoint"]

Answer = tuple[int, bytes]


class Handler(BaseHTTPRequestHandler):
    """Takes and sends JSON, and logs nothing; `answer` is what it does."""

    def do_POST(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        raise NotImplementedError

    def body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def send_json(self, content: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address, without a slash at its end, where such handlers answer."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        # it looks so often whether it is to end
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class Endpoint:
    """An endpoint as OpenAI's are; `answer` decides, `requests` remembers.

    Attributes:
        requests: path, authorization and body of each.
        hang: an answer may wait for it; it is set in the end.
        url: of its API, once it listens.
    """

    url = ""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        self.answer: Callable[[str, Any], Answer] = self.sensible
        self.hang = threading.Event()

    def sensible(self, path: str, body: Any) -> Answer:
        if path.endswith("/embeddings"):
            data = [
                {"index": i, "embedding": [float(len(text)), 1.0, 0.5, 0.25]}
                for i, text in enumerate(body["input"])
            ]
            return 200, json.dumps({"data": data[::-1]}).encode()
        said = body["messages"][-1]["content"]
        return 200, json.dumps(
            {"choices": [{"message": {"content": f"They spoke of {len(said)} characters."}}]}
        ).encode()


@contextmanager
def started_endpoint() -> Iterator[Endpoint]:
    """An endpoint that listens."""
    endpoint = Endpoint()

    class Answers(Handler):
        def answer(self) -> None:
            body = self.body()
            endpoint.requests.append((self.path, self.headers.get("Authorization", ""), body))
            status, content = endpoint.answer(self.path, body)
            self.send_json(content, status)

    with listening(Answers) as address:
        endpoint.url = f"{address}/v1"
        try:
            yield endpoint
        finally:
            endpoint.hang.set()
