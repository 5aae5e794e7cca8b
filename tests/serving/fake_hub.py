"""A hub on this machine: the routes that huggingface_hub 2.4 calls to create a repository and to commit a folder.

They are recorded from its source: create_repo, repo_info and create_commit in hf_api.py, `_fetch_upload_modes` and
`_send_commit` in _commit_api.py, and the LFS protocol in lfs.py.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_writes"
LARGE = (".safetensors", ".gguf")


@dataclass
class FakeHub:
    """The state of the hub, and what it refuses."""

    url: str = ""
    repositories: dict[str, bool] = field(default_factory=dict)
    """Whether each repository is private."""
    files: dict[str, bytes] = field(default_factory=dict)
    """The content of each committed file, by its path below the repository's name."""
    large: dict[str, bytes] = field(default_factory=dict)
    """The content of uploaded large files, by sha256."""
    cards: list[str] = field(default_factory=list)
    refuses_commits: bool = False


def answer(hub: FakeHub, method: str, path: str, body: bytes, token: str | None) -> tuple[int, Any]:
    """Return the status and the JSON content of an answer."""
    path = path.partition("?")[0]
    if path.startswith("/upload/"):
        hub.large[path.rpartition("/")[2]] = body
        return 200, {}
    if token != f"Bearer {TOKEN}":
        return 401, {"error": "Invalid username or password."}
    if path == "/api/repos/create":
        wanted = json.loads(body)
        name = f"{wanted['organization']}/{wanted['name']}"
        if name in hub.repositories:
            return 409, {"error": "You already created this model repo", "url": f"{hub.url}/{name}"}
        hub.repositories[name] = wanted["visibility"] == "private"
        return 200, {"url": f"{hub.url}/{name}"}
    if path == "/api/validate-yaml":
        hub.cards.append(json.loads(body)["content"])
        return 200, {"errors": [], "warnings": []}
    if path.endswith(".git/info/lfs/objects/batch"):
        objects = [
            {**one, "actions": {"upload": {"href": f"{hub.url}/upload/{one['oid']}"}}}
            for one in json.loads(body)["objects"]
        ]
        return 200, {"transfer": "basic", "objects": objects}
    _, _, _, owner, name, *rest = path.split("/")
    repository = f"{owner}/{name}"
    if not rest or rest == ["revision", "main"]:
        return 200, {"id": repository, "private": hub.repositories[repository], "sha": "0" * 40, "siblings": []}
    if rest[0] == "preupload":
        files = [
            {
                "path": one["path"],
                "uploadMode": "lfs" if one["path"].endswith(LARGE) else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for one in json.loads(body)["files"]
        ]
        return 200, {"files": files}
    if rest[0] == "commit":
        return commit(hub, repository, body)
    return 404, {"error": f"this hub has no {method} {path}"}


def commit(hub: FakeHub, repository: str, body: bytes) -> tuple[int, Any]:
    if hub.refuses_commits:
        return 403, {"error": "You don't have the rights to push"}
    for line in body.splitlines():
        entry = json.loads(line)
        value = entry["value"]
        if entry["key"] == "file":
            hub.files[f"{repository}/{value['path']}"] = base64.b64decode(value["content"])
        elif entry["key"] == "lfsFile":
            hub.files[f"{repository}/{value['path']}"] = hub.large[value["oid"]]
    return 200, {"commitUrl": f"{hub.url}/{repository}/commit/{'1' * 40}", "commitOid": "1" * 40}


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    """Serve a hub on a free port."""
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            body = self.read_body()
            status, content = answer(hub, self.command, self.path, body, self.headers.get("Authorization"))
            encoded = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def read_body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        do_GET = do_POST = do_PUT = respond

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
