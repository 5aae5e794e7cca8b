"""Serves queries about a log file: one JSON request and one JSON answer per connection."""

import json
import signal
import socketserver
import sys

LINES = [line.rstrip("\n").split("\t") for line in open(sys.argv[1], encoding="utf-8")]


def grep(host, level):
    return [message for _, where, what, message in LINES if where == host and what == level]


def hosts():
    return sorted({where for _, where, _, _ in LINES})


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        query = json.loads(self.rfile.readline())
        try:
            answer = {"grep": grep, "hosts": hosts}[query["tool"]](**query["arguments"])
        except KeyError as error:
            answer = {"error": f"unknown tool {error}"}
        except (TypeError, ValueError) as error:
            answer = {"error": str(error)}
        self.wfile.write(json.dumps(answer).encode() + b"\n")


signal.alarm(300)
with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
    print(server.server_address[1], flush=True)
    server.serve_forever()
