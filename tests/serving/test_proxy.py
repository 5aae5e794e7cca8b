"""`sparring serve` behind nginx, with the settings of docs/vllm.md."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path

import httpx
import openai
import pytest

from tests.serving.nginx import NGINX, run_nginx, wait_until_it_answers
from tests.serving.test_serve import ADMIN, ROOT, serving

PAGE = (ROOT / "docs" / "vllm.md").read_text("utf-8")
HOST = "model.example.com"


@pytest.mark.skipif(NGINX is None or shutil.which("openssl") is None, reason="needs nginx and openssl")
def test_a_proxy_adds_tls_and_hides_the_routes_of_operators(run: Path, tmp_path: Path) -> None:
    async def scenario() -> tuple[list[str], int, int]:
        async with serving(str(run)) as served:
            address = served["base_url"].removesuffix("/v1")
            with run_nginx(PAGE, tmp_path, HOST, {"http://127.0.0.1:8000": address}) as url:
                trusted = ssl.create_default_context(cafile=str(tmp_path / f"{HOST}.pem"))
                extensions = {"sni_hostname": HOST}
                transport = httpx.AsyncHTTPTransport(verify=trusted, retries=20)

                async def set_name(request: httpx.Request) -> None:
                    request.headers["host"] = HOST
                    request.extensions.update(extensions)

                async with httpx.AsyncClient(
                    transport=transport, timeout=60, event_hooks={"request": [set_name]}
                ) as http:
                    await wait_until_it_answers(http, f"{url}/health")
                    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", http_client=http)
                    stream = await client.chat.completions.create(
                        model="run",
                        messages=[{"role": "user", "content": "7?"}],
                        max_tokens=8,
                        stream=True,
                    )
                    reasons = [one.choices[0].finish_reason or "" async for one in stream if one.choices]
                    hidden = await http.get(f"{url}/v1/sparring/versions", headers=ADMIN)
                    async with httpx.AsyncClient() as direct:
                        shown = await direct.get(f"{address}/v1/sparring/versions", headers=ADMIN)
                    return reasons, hidden.status_code, shown.status_code

    reasons, hidden, shown = asyncio.run(scenario())
    assert len(reasons) > 1
    assert reasons[-1] in ("length", "stop")
    assert (hidden, shown) == (404, 200)
