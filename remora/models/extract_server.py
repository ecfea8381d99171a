"""What `ExtractProcess` starts: ``python -m remora.models.extract_server COUNTER DETAIL``.

It reads requests from its standard input, which is a socket, and writes their answers there.
"""

from __future__ import annotations

import signal
import socket
import sys

import msgspec

from remora.models.extract_process import Extractor, Request, receive, send
from remora.models.extractive import make_extractor
from remora.tokens import HeuristicCounter, TiktokenCounter, TokenCounter

__all__ = ["main"]


def main(kind: str, detail: str) -> None:
    """Answer requests until the socket is closed. An extract that fails is answered by None."""
    for number in (signal.SIGINT, signal.SIGTERM):  # for the parent, which still needs it then
        signal.signal(number, signal.SIG_IGN)
    counter: TokenCounter = (
        HeuristicCounter(detail) if kind == "heuristic" else TiktokenCounter(detail)
    )
    counter.count("Ready.")
    with socket.socket(fileno=sys.stdin.fileno()) as connection:
        send(connection, b"")
        try:
            _serve(connection, counter)
        except (EOFError, OSError):
            return


def _serve(connection: socket.socket, counter: TokenCounter) -> None:
    decode = msgspec.msgpack.Decoder(Request).decode
    extract: Extractor | None = None
    while True:
        request = decode(receive(connection))
        if request.given is not None:
            extract = make_extractor(request.given.previous, request.given.lines, counter.count)
        try:
            text = extract and extract(request.max_tokens)
        except Exception:  # the parent's thread makes it again, and tells why it failed
            text = None
        send(connection, msgspec.msgpack.encode(text))


if __name__ == "__main__":
    main(*sys.argv[1:])
