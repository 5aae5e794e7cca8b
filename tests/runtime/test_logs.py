"""What is logged has no secret in it, in every handler, and is kept with the run, a line each."""

import json
import logging
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from sparring.runtime.logs import get_logger, ignore_write_errors, log_to_folder

ROOT = Path(__file__).parents[2] / "sparring"


def test_secrets_are_masked_in_messages_arguments_and_tracebacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "canary-4f1b")
    logger = get_logger("sparring.somewhere")
    with log_to_folder(tmp_path):
        try:
            raise ValueError("no canary-4f1b")
        except ValueError:
            logger.exception("%s refused %s", "the shop", "canary-4f1b")
    assert "the shop refused ***" in caplog.text
    assert "canary" not in caplog.text
    (line,) = (tmp_path / "log.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"]) == ("ERROR", "sparring.somewhere")
    assert entry["message"] == "the shop refused ***"
    assert entry["traceback"].endswith("ValueError: no ***")


def test_a_run_keeps_its_own_lines_only(tmp_path: Path) -> None:
    logger = get_logger("sparring.somewhere")
    with log_to_folder(tmp_path):
        logger.warning("one")
        logging.getLogger("elsewhere").warning("of another library")
    logger.warning("two")
    assert [json.loads(line)["message"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == ["one"]


@pytest.mark.parametrize("library", ["logging.basicConfig()", "logging.basicConfig(stream=sys.stdout)"])
def test_the_command_line_prints_a_line_once_though_a_library_configured_the_root_logger(
    library: str, tmp_path: Path
) -> None:
    kept = tmp_path / "all.log"
    lines = [
        "import logging, sys",
        "from sparring.runtime.logs import get_logger, show_on_stderr",
        "show_on_stderr()",
        library,
        f"logging.getLogger().addHandler(logging.FileHandler({str(kept)!r}))",
        "get_logger('sparring.somewhere').warning('disk is full')",
        "logging.getLogger('library').warning('of its own')",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert (done.stdout + done.stderr).count("disk is full") == 1
    assert "warning: disk is full\n" in done.stderr
    assert (done.stdout + done.stderr).count("of its own") == 1
    # What the user's own handlers collect is complete.
    assert kept.read_text() == "disk is full\nof its own\n"


def test_every_module_takes_the_logger_that_masks() -> None:
    own = ROOT / "runtime" / "logs.py"
    taking = [path for path in ROOT.rglob("*.py") if path != own and "logging.getLogger(" in path.read_text("utf-8")]
    assert taking == []


def test_a_stream_that_cannot_be_written_any_more_is_no_reason_to_fail(tmp_path: Path) -> None:
    full = Path("/dev/full").open("w")  # noqa: SIM115 (closing it fails, too)
    with pytest.raises(OSError, match="No space"):
        print("lost", file=full, flush=True)
    print("lost", file=ignore_write_errors(full), flush=True)
    with suppress(OSError):
        full.close()
    with closing(ignore_write_errors(None)) as missing:
        print("lost", file=missing, flush=True)
    with (tmp_path / "output").open("w") as file:
        print("kept", file=ignore_write_errors(file), flush=True)
        assert ignore_write_errors(file).fileno() == file.fileno()
    assert (tmp_path / "output").read_text() == "kept\n"
