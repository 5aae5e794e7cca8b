"""Run the gateway in front of any endpoint and store the forwarded requests as trajectories (`sparring record`)."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self, final

from sparring.chat.messages import canonical_json
from sparring.engines.openai import UNSET, OpenAIEngine
from sparring.errors import DataError
from sparring.gateway.app import create_app
from sparring.gateway.episode import OpenEpisode
from sparring.gateway.overload import MAX_IN_FLIGHT, InFlight
from sparring.gateway.report import EpisodeReport
from sparring.gateway.request import ApiError, Asked
from sparring.ledger import Ledger, RolloutState
from sparring.protocols import MessageEngine
from sparring.run_folders.encode import encode_line
from sparring.runtime import interrupts
from sparring.runtime.private_files import create_folder, open_private, write_private
from sparring.serving.access import Access
from sparring.sessions import EpisodeIdentity, MessageSession
from sparring.sessions.matching import canonical_history
from sparring.tracking.local import trajectory_json
from sparring.types import Message, Outcome, StopReason, Task, Trajectory, Turn

_LONGEST_NAME = 200


@final
class _Episode:
    """One episode. The first recorded turn determines the episode's number, and its name if the client gave none.

    Its file is `trajectories/recorded-<number>.jsonl`.
    """

    def __init__(self, recording: Recording, name: str, *, id: str, engine: MessageEngine) -> None:
        self._recording = recording
        self.name = name
        self.number = 0
        self.session = MessageSession(EpisodeIdentity(id), engine=engine, sampling=UNSET, ledger=self)
        self.endpoint = OpenEpisode(self.session)
        self.writing = asyncio.Lock()

    def rollout_id(self, member: int = 0) -> str:
        """Return the id of a conversation. In the ledger, all turns of an episode have the id of its first conversation."""
        return f"recorded/{self.number}/{self.name}/{member}.0"

    def record_turn_nowait(self, rollout_id: str, turn: Turn, *, request_digest: str) -> Future[None]:
        return self._recording.record_turn_nowait(self, turn, request_digest=request_digest)

    async def committed(self, future: Future[None]) -> None:
        await self._recording.committed(self, future)

    def record_not_received_nowait(self, rollout_id: str, turn_ids: Sequence[int]) -> None:
        self._recording.ledger.record_not_received_nowait(self.rollout_id(), turn_ids)


@final
class Recording:
    """A folder that records episodes of clients: `manifest.json`, `ledger.sqlite`, `trajectories/recorded-*.jsonl`.

    Implements `gateway.endpoints.Endpoints` with episodes that open automatically. A name in the path (`/s/NAME/v1`)
    identifies an episode. Without a name, each conversation is an episode, identified by its messages. The turn is in
    the ledger and the conversation is in the file before the client gets an answer, so a crash loses nothing. An
    episode without any answer from the endpoint is not recorded.

        async with Recording(Path("runs/teacher"), engine, model="expert") as recording:
            await Listener(create_app(recording), "127.0.0.1", 8000).start()
    """

    takes_seed = True
    is_key_in_path = False
    ledger: Ledger

    def __init__(
        self,
        path: Path,
        engine: MessageEngine,
        *,
        model: str,
        on_turn: Callable[[int, int], None] | None = None,
    ) -> None:
        """Prepare a recording. Nothing is written before `open`.

        `on_turn(turns, episodes)` is called with the counts after each turn. Raises DataError if `path` is not empty.
        """
        self._path = path
        self._engine = engine
        self._model = model
        self._on_turn = on_turn
        self._episodes: list[_Episode] = []
        """The episodes with turns, by number."""
        self._named: dict[str, _Episode] = {}
        self._unnamed: list[_Episode] = []
        """The unnamed episodes with turns."""
        self._session_numbers = itertools.count(1)
        self._is_open = asyncio.Event()
        self._in_flight = InFlight(MAX_IN_FLIGHT, of="The recording")
        self.num_turns = 0
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise DataError(f"{path} exists and is not empty, but a recording needs a new folder; give another --out.")

    def open(self) -> None:
        """Create the folder. Requests wait until the folder exists. Raises DataError if the folder cannot be
        written."""
        try:
            create_folder(self._path, parents=True, exist_ok=True)
            create_folder(self._path / "trajectories")
        except OSError as error:
            raise DataError(f"{self._path} cannot be written: {error}; give another --out.") from error
        manifest = {"format": 1, "kind": "recording", "created": time.time(), "upstream": self._engine.fingerprint}
        write_private(self._path / "manifest.json", json.dumps(manifest, indent=1) + "\n")
        self.ledger = Ledger(self._path / "ledger.sqlite")
        self._is_open.set()

    @property
    def model_names(self) -> Sequence[str]:
        """The name under which the endpoint serves the model."""
        return (self._model,)

    @property
    def num_episodes(self) -> int:
        """The number of episodes with recorded turns."""
        return len(self._episodes)

    def check(self, api_key: str) -> None:
        """Do nothing: the gate of the server checks keys."""

    def admitted(self, api_key: str) -> InFlight:
        """Return a context for a request in progress. Raises ApiError 429 if too many requests are in progress."""
        return self._in_flight.admitted()

    def refused(self, api_key: str, digest: bytes) -> None:
        """Do nothing: refused requests are not recorded, so a retry is treated like any other request."""

    def note_refusal(self, api_key: str, error: ApiError) -> None:
        """Do nothing: refused requests are not recorded."""

    @asynccontextmanager
    async def enter(self, api_key: str, request: Asked) -> AsyncIterator[OpenEpisode]:
        """Wait until the folder is open, and return the endpoint of the episode that a request belongs to."""
        await self._is_open.wait()
        yield self._episode(request).endpoint

    def report(self, api_key: str) -> EpisodeReport:
        """Reject the request, because a recording accepts no reports."""
        raise ApiError(401, "A recording accepts no reports; grade its trajectories later.", code="invalid_api_key")

    def record_turn_nowait(self, episode: _Episode, turn: Turn, *, request_digest: str) -> Future[None]:
        """Queue a turn for the ledger."""
        if not episode.number:
            self._number(episode)
        return self.ledger.record_turn_nowait(episode.rollout_id(), turn, request_digest=request_digest)

    async def committed(self, episode: _Episode, future: Future[None]) -> None:
        """Wait until a turn is in the ledger and the conversations of its episode are in their file on disk."""
        await self.ledger.committed(future)
        await self._write(episode)
        self.num_turns += 1
        if self._on_turn is not None:
            self._on_turn(self.num_turns, self.num_episodes)

    async def close(self) -> None:
        """End every episode."""
        for episode in self._episodes:
            episode.session.close()
            await self._write(episode)
            await self.ledger.advance(episode.rollout_id(), RolloutState.FINISHED)
        if self._is_open.is_set():
            await asyncio.to_thread(self.ledger.close)

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    def _episode(self, request: Asked) -> _Episode:
        name = request.episode
        if name is not None:
            if len(name) > _LONGEST_NAME:
                raise ApiError(
                    400,
                    f"The episode's name has {len(name)} characters, but at most {_LONGEST_NAME} are allowed.",
                    code="invalid_value",
                )
            if name not in self._named:
                self._named[name] = self._episode_of(name)
            return self._named[name]
        instructions: list[Message] = []
        if request.instructions is not None:
            instructions.append({"role": "system", "content": request.instructions})
        wanted, tools = canonical_history([*instructions, *request.messages]), canonical_json(list(request.tools))
        # The newest comes first: if conversations are equal, the newest is the one in progress.
        for episode in reversed(self._unnamed):
            if named := request.previous or next(iter(request.item_ids), None):
                belongs = f"{episode.session.id}-" in named
            else:
                belongs = episode.session.continues(wanted, tools)
            if belongs:
                return episode
        return self._episode_of("")

    def _episode_of(self, name: str) -> _Episode:
        return _Episode(self, name, id=f"session-{next(self._session_numbers)}", engine=self._engine)

    def _number(self, episode: _Episode) -> None:
        """Number an episode when its first turn is recorded, and add it to the ledger."""
        self._episodes.append(episode)
        episode.number = len(self._episodes)
        if not episode.name:
            self._unnamed.append(episode)
            episode.name = f"conversation-{len(self._unnamed)}"
        rollout_id = episode.rollout_id()
        self.ledger.plan_nowait(rollout_id, task_id=episode.name, attempt=0, split="recorded")
        for state in (RolloutState.LEASED, RolloutState.RUNNING):
            self.ledger.advance_nowait(rollout_id, state)

    async def _write(self, episode: _Episode) -> None:
        async with episode.writing:
            lines = [encode_line(trajectory_json(one)) for one in _trajectories(episode)]
            await asyncio.to_thread(_replace, self._path / "trajectories" / f"recorded-{episode.number}.jsonl", lines)


def record(
    upstream: str,
    model: str,
    path: Path,
    *,
    access: Access,
    upstream_key: str | None = None,
    on_ready: Callable[[str], None] | None = None,
    on_turn: Callable[[int, int], None] | None = None,
) -> None:
    """Record until interrupted.

    `on_ready(base_url)` is called when the server accepts requests. `on_turn` is passed to `Recording`. Raises
    DataError if `path` is not empty, and ServiceError if the address is in use.
    """

    async def run() -> None:
        engine = OpenAIEngine(upstream, model, api_key=upstream_key)
        try:
            recording = Recording(path, engine, model=model, on_turn=on_turn)
            listener = access.listen(create_app(recording, gate=access.open_gate("record")))
            # If the address is in use, no folder is left behind.
            await listener.start()
            try:
                recording.open()
                if on_ready is not None:
                    on_ready(listener.base_url)
                await asyncio.Event().wait()
            finally:
                await listener.stop()
                await recording.close()
        finally:
            await engine.close()

    interrupts.run(run())


def recording_path(folder: Path) -> Path:
    """Return a new path in a folder: recorded-001, recorded-002, ..."""
    number = 1
    while (path := folder / f"recorded-{number:03}").exists():
        number += 1
    return path


def _trajectories(episode: _Episode) -> Iterable[Trajectory]:
    """Return one trajectory for each conversation. An episode has several conversations if its client branched the
    conversation."""
    session = episode.session
    # The file contains an answer before its client receives it.
    turns = {turn.id: turn for turn in (session.turns if session.is_closed else session.sampled_turns)}
    continued = {turn.parent for turn in turns.values()}
    for member, last in enumerate(turn for turn in turns.values() if turn.id not in continued):
        line = [last]
        while line[0].parent is not None:
            line.insert(0, turns[line[0].parent])
        messages, tools = session.conversation(last.id)
        opening = session.conversation(line[0].id)[0][:-1]
        yield Trajectory(
            id=episode.rollout_id(member),
            task=Task(id=episode.name, messages=opening, fields={"tools": tools}),
            attempt=member,
            turns=tuple(line),
            messages=messages,
            outcome=Outcome.MAX_TOKENS if last.stop_reason is StopReason.LENGTH else Outcome.FINISHED,
            reward=None,
            score=None,
            seconds=sum(turn.seconds for turn in line),
        )


def _replace(path: Path, lines: Iterable[bytes]) -> None:
    """Write a file so that readers see either the old or the new content, even after a crash."""
    temporary = path.with_suffix(".tmp")
    with open_private(temporary, "wb") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
