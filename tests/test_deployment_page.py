"""What docs/deployment.md describes works: the proxy in front of a run, and the unit of systemd."""

from __future__ import annotations

import asyncio
import re
import shutil
import ssl
import subprocess
import tomllib
from pathlib import Path

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sparring.config import load_config
from sparring.gateway import Gateway
from sparring.tracking.prometheus import PrometheusTracker
from tests.gateway.builders import USER, session
from tests.serving.nginx import NGINX, run_nginx, wait_until_it_answers

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "deployment.md").read_text("utf-8")
UNIT = ROOT / "deploy" / "sparring@.service"
HOST = "train.example.com"


@pytest.mark.skipif(NGINX is None or shutil.which("openssl") is None, reason="needs nginx and openssl")
def test_a_proxy_adds_tls_to_a_gateway_and_a_password_to_its_metrics(tmp_path: Path) -> None:
    (tmp_path / "htpasswd").write_text("prometheus:{PLAIN}secret\n")
    tracker = PrometheusTracker("127.0.0.1:0", run="shop", linger_seconds=0.0)
    tracker.log_metrics(3, {"rollout/reward/mean": 0.5})

    async def scenario() -> tuple[str, list[int], str]:
        async with Gateway(allowed_hosts=(HOST,)) as gateway, session(["well done"]) as chat_session:
            changes = {
                "http://127.0.0.1:8000": gateway.base_url.removesuffix("/v1"),
                "http://127.0.0.1:9400": tracker.address,
                "/etc/nginx/metrics.htpasswd": f"{tmp_path}/htpasswd",
            }
            with run_nginx(PAGE, tmp_path, HOST, changes) as url:
                trusted = ssl.create_default_context(cafile=str(tmp_path / f"{HOST}.pem"))

                async def set_name(request: httpx.Request) -> None:
                    request.headers["host"] = HOST
                    request.extensions.update({"sni_hostname": HOST})

                async with httpx.AsyncClient(verify=trusted, timeout=30, event_hooks={"request": [set_name]}) as http:
                    await wait_until_it_answers(http, f"{url}/health")
                    key = gateway.register(chat_session).api_key
                    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, http_client=http)
                    stream = await client.chat.completions.create(model="any", messages=[USER], stream=True)
                    text = "".join([one.choices[0].delta.content or "" async for one in stream if one.choices])
                    refused = await http.get(f"{url}/metrics")
                    metrics = await http.get(f"{url}/metrics", auth=("prometheus", "secret"))
                    return text, [refused.status_code, metrics.status_code], metrics.text

    try:
        text, codes, metrics = asyncio.run(scenario())
    finally:
        tracker.close()
    assert text == "well done"
    assert codes == [401, 200]
    samples = [one for family in text_string_to_metric_families(metrics) for one in family.samples]
    assert {one.name: one.value for one in samples}["sparring_rollout_reward_mean"] == 0.5


def test_the_recipe_of_the_page_is_accepted(tmp_path: Path) -> None:
    found = re.search(r"```toml\n(.+?)```", PAGE, flags=re.DOTALL)
    assert found is not None
    assert tomllib.loads(found[1])["agent"]["gateway_names"] == [HOST]
    (tmp_path / "recipe.toml").write_text(
        found[1] + '[data]\ntrain = "tasks.jsonl"\n[reward]\nreward = "reward:reward"\n'
    )
    assert load_config(tmp_path).tracking.prometheus_address == "127.0.0.1:9400"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    def complaints(text: str) -> str:
        # The program is not installed at this path here.
        unit = tmp_path / "sparring@desk.service"
        unit.write_text(text.replace("/opt/sparring/bin/sparring", "/bin/true"))
        command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stderr

    assert [line for line in complaints(UNIT.read_text("utf-8")).splitlines() if unit_line(line)] == []
    assert any(map(unit_line, complaints(UNIT.read_text("utf-8").replace("KillMode", "KilMode")).splitlines()))


def unit_line(line: str) -> bool:
    return "sparring@desk.service" in line


def test_the_unit_starts_a_run_and_then_continues_it(tmp_path: Path) -> None:
    command = re.search(r"^ExecStart=/bin/sh -c '(.+)'$", UNIT.read_text("utf-8"), flags=re.MULTILINE)
    assert command is not None
    script = command[1].replace("%i", "desk").replace("/opt/sparring/bin/sparring", "echo")

    def started() -> str:
        return subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert started() == "train /etc/sparring/desk --name desk\n"
    (tmp_path / "runs" / "desk").mkdir(parents=True)
    (tmp_path / "runs" / "desk" / "run.toml").touch()
    assert started() == "train --resume runs/desk\n"
