"""What a server of this protocol answers to HTTP, so that a person with a browser learns where they are."""

from __future__ import annotations

from fluss.protocol.codec import Parts


def http_answer(page: str) -> Parts:
    """Return an answer to any request, after which the connection is closed; ``page`` says what there is over HTTP."""
    body = f"This port speaks the protocol of Apache Fluss, and not HTTP. {page}\n".encode()
    head = (
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return [head.encode(), body]
