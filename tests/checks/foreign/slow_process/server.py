"""Answers requests, a JSON object a line; it takes as many seconds to start as its argument states."""

import json
import sys
import time

time.sleep(float(sys.argv[1]))
records = {}
for line in sys.stdin:
    request = json.loads(line)
    if "open" in request:
        records, reply = request["open"], {"result": "ready"}
    else:
        kind, key = request["find"]
        reply = {"result": records[kind][key]} if key in records[kind] else {"error": f"no {key} in {kind}"}
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()
