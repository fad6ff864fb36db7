"""A small server that speaks the hub's endpoints for files."""

import hashlib
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubServer:
    """files: "owner/repo/name" -> content. Redirects to /cdn as the hub does for large files.

    errors:     "owner/repo" -> (status, the hub's error code)
    cuts:       how many answers to GET break off half-way
    wrong:      names whose bytes are not those that the hub announces
    requests:   what was asked, as "METHOD path range"
    """

    files: dict[str, bytes]
    errors: dict[str, tuple[int, str]] = field(default_factory=dict)
    cuts: int = 0
    wrong: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, *, with_body: bool) -> None:
            hub.requests.append(f"{self.command} {self.path} {self.headers.get('Range', '')}".strip())
            if self.path.startswith("/cdn/"):
                self._send_file(self.path.removeprefix("/cdn/"), with_body)
            elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path):
                self._resolve(match[1], match[2], match[3])
            else:
                self._status(404, {})

        def _resolve(self, repository: str, revision: str, name: str) -> None:
            if repository in hub.errors:
                status, code = hub.errors[repository]
                self._status(status, {"X-Error-Code": code, "X-Error-Message": code})
            elif not any(file.startswith(f"{repository}/") for file in hub.files):
                self._status(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            elif revision not in ("main", COMMIT):
                self._status(404, {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
            elif (content := hub.files.get(f"{repository}/{name}")) is None:
                self._status(404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
            else:
                digest = hashlib.sha256(content).hexdigest()
                headers = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": f'"{digest}"', "ETag": '"other"'}
                headers |= {"X-Linked-Size": str(len(content)), "Location": f"/cdn/{repository}/{name}"}
                self._status(302, headers)

        def _send_file(self, name: str, with_body: bool) -> None:
            content = hub.files[name]
            if name in hub.wrong:
                content = bytes(255 - byte for byte in content)
            digest = hashlib.sha256(hub.files[name]).hexdigest()
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
            status, start = 200, 0
            if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
                status, start = 206, int(match[1])
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            if not with_body:
                return
            body = content[start:]
            if hub.cuts:
                hub.cuts -= 1
                self.wfile.write(body[: len(body) // 2])
                self.close_connection = True
            else:
                self.wfile.write(body)

        def _status(self, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler
