"""A Hub on loopback with a few repositories, which counts what is asked of it."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """``repositories``: name -> files; ``gated``: names whose files need a login. Use as a context manager."""

    daemon_threads = True

    def __init__(
        self, repositories: dict[str, dict[str, bytes]], gated: set[str] = frozenset(), status: int = 0
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories, self.gated, self.status = repositories, gated, status
        self.fetched: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> FakeHub:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def do_GET(self) -> None:
        if self.server.status:
            return self._send(self.server.status, b"{}")
        if match := re.match(r"/api/models/([^/]+/[^/?]+)(?:/(revision|tree)/([^/?]+))?", self.path):
            return self._api(*match.groups())
        if match := re.match(r"/([^/]+/[^/]+)/resolve/([^/]+)/([^?]+)", self.path):
            return self._file(*match.groups())
        return self._send(404, b"{}")

    do_HEAD = do_GET

    def _api(self, name: str, kind: str | None, revision: str | None) -> None:
        files = self.server.repositories.get(name)
        if files is None:
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if revision not in (None, "main", "v1", COMMIT):
            return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        if kind == "tree":
            answer: object = [{"type": "file", "path": f, "size": len(b), "oid": _oid(b)} for f, b in files.items()]
        else:
            answer = {"id": name, "sha": COMMIT, "siblings": [{"rfilename": f} for f in files]}
        return self._send(200, json.dumps(answer).encode())

    def _file(self, name: str, revision: str, file: str) -> None:
        if name in self.server.gated:
            return self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        body = self.server.repositories[name].get(file)
        if body is None:
            return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        if self.command == "GET":
            self.server.fetched.append(file)
        return self._send(200, body, {"ETag": f'"{_oid(body)}"', "X-Repo-Commit": COMMIT})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _oid(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()
