"""Start SkyRL's Tinker server on this machine. The interpreter of SkyRL's own environment runs this file.

    .clients/skyrl/bin/python tests/tinker/skyrl_server.py --base-model FOLDER --backend jax --port 8211

SkyRL 0.4.0 starts its engine with `uv run`, with the arguments of the process that started the server
(skyrl/tinker/api.py, `_build_uv_run_cmd_engine`). This file starts the engine with the same interpreter instead.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any


def main() -> None:
    import uvicorn
    from skyrl.tinker import api, config

    def build_command(_: list[str], engine: Any) -> list[str]:
        return [sys.executable, "-m", "skyrl.tinker.engine", *config.config_to_argv(engine)]

    api._build_uv_run_cmd_engine = build_command
    parser = argparse.ArgumentParser()
    config.add_model(parser, config.EngineConfig)
    parser.add_argument("--port", type=int, required=True)
    arguments = vars(parser.parse_args())
    port = arguments.pop("port")
    api.app.state.engine_config = config.EngineConfig.model_validate(arguments)
    uvicorn.run(api.app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
