"""What fake-gcs-server lacks of the interface that clients use, in front of it.

It takes a PUT of an object only as a signed URL, writes over objects that must not exist, and names
no version in its response. This program adds that, and passes on everything else.

Usage:
    python -m dalsegno_bench.object_store.gcs_front ADDRESS PORT SERVER_PORT
"""

from __future__ import annotations

import http.client
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PASSED_ON = ("Content-Type", "Content-Range", "Last-Modified", "ETag", "Date", "X-Goog-Generation")
MUST_NOT_EXIST = ("x-goog-if-generation-match", "0")


class Front(BaseHTTPRequestHandler):
    """Serves one connection."""

    protocol_version = "HTTP/1.1"
    # Set before it serves: host and port of the server.
    server_at: tuple[str, int]
    public_host: str
    # One creation at a time, so that a second one sees the first.
    creating = threading.Lock()

    def handle_request(self) -> None:
        """Passes a request on, and its response back."""
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if self.command != "PUT":
            self._answer(*self._ask(self.command, self.path, body))
            return
        with self.creating:
            name, wanted = MUST_NOT_EXIST
            if self.headers.get(name) == wanted and self._ask("HEAD", self.path)[0] == 200:
                self._answer(412, {}, b"")
                return
            status, headers, said = self._ask("PUT", f"{self.path}?X-Goog-Algorithm=none", body)
        self._answer(status, {**headers, "ETag": '"written"', "X-Goog-Generation": "1"}, said)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request  # noqa: N815 - their names

    def _ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.server_at, timeout=60)
        try:
            of_ours = ("content-length", "transfer-encoding", "expect", "host")
            kept = {
                name: value for name, value in self.headers.items() if name.lower() not in of_ours
            }
            # The server looks at it to know a bucket.
            kept["Host"] = self.public_host
            connection.request(method, path, body=body, headers=kept)
            answer = connection.getresponse()
            said = answer.read()
            headers = {
                name: value for name in PASSED_ON if (value := answer.getheader(name)) is not None
            }
            if method == "HEAD":
                headers["Content-Length"] = answer.getheader("Content-Length") or "0"
            return answer.status, headers, said
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], said: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


def main() -> None:
    """Serves until it is killed."""
    address, port, server_port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    Front.server_at, Front.public_host = (address, server_port), f"{address}:{port}"
    ThreadingHTTPServer((address, port), Front).serve_forever()


if __name__ == "__main__":
    main()
