"""A small file server on 127.0.0.1 that can misbehave: break off, ignore ranges, wait."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class FileServer:
    """Serve ``files`` (name -> bytes) at ``url``; ``requests`` lists (name, range start) as they
    came.

    ``cut``: break off every answer after so many bytes. ``ranges``: whether Range requests are
    understood. ``pause``: seconds to wait before each piece of 1,000 bytes.
    """

    def __init__(
        self,
        files: dict[str, bytes],
        *,
        cut: int | None = None,
        ranges: bool = True,
        pause: float = 0.0,
    ):
        self.files, self.cut, self.ranges, self.pause = files, cut, ranges, pause
        self.requests: list[tuple[str, int]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        self._thread.start()
        return self

    def __exit__(self, *error) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(outer):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.lstrip("/")
                asked = self.headers.get("Range")
                start = (
                    int(asked.removeprefix("bytes=").rstrip("-")) if asked and outer.ranges else 0
                )
                outer.requests.append((name, start))
                body = outer.files.get(name)
                if body is None or (start and start >= len(body)):
                    self.send_error(404 if body is None else 416)
                    return
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(body) - start))
                self.end_headers()
                self._send(body[start:][: outer.cut])

            def _send(self, body):
                try:
                    for k in range(0, len(body), 1000):
                        time.sleep(outer.pause)
                        self.wfile.write(body[k : k + 1000])
                        self.wfile.flush()
                except ConnectionError:
                    pass  # the client was killed

            def log_message(self, *args):
                pass

        return Handler
