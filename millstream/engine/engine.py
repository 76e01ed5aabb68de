"""The engine: one model, on this process's device or on a mesh of ranks, and any number of sessions on it.

engine = Engine("brook", weights="bundled")
for chunk in engine.session("a lantern over the sea").stream(chunks=4):
    ...
"""

from __future__ import annotations

import itertools
import secrets
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from millstream import __version__
from millstream.core.config import StreamConfig
from millstream.core.controls import Cut, WeightedPrompt
from millstream.core.engine_config import EngineConfig
from millstream.core.envelope import Action
from millstream.core.errors import ConfigError, MeshError
from millstream.core.presets import apply_schedule, find_model
from millstream.core.speed import Speed, of_pictures
from millstream.core.undo import undone_by
from millstream.engine.depths import ONE_AT_A_TIME, Depths, depths_for
from millstream.engine.device_choice import choose_device, choose_dtype, choose_vae_devices
from millstream.engine.speed_choice import fitting_speed
from millstream.engine.stream import Stream
from millstream.engine.vae_place import place_vae
from millstream.generation.brake import Brake
from millstream.generation.generator import Commits, Generator
from millstream.generation.stopwatch import Stopwatch
from millstream.mesh.config import MeshConfig
from millstream.mesh.first_split import pictures_s
from millstream.mesh.launch import Launch, launcher
from millstream.mesh.recovery import MeshTransport
from millstream.models.brook.files import find_beside
from millstream.models.fast.apply import accelerate, refuse_impossible
from millstream.models.fast.recorded import MAX_RECORDINGS, RecordedStack, chunks_before
from millstream.models.offloaded_text import OffloadedTextEncoder
from millstream.models.registry import PARTS, LoadedModel, described, load_model
from millstream.models.ring_shape import RingShape
from millstream.models.wan.tiny_decoder import PreviewVAE, TinyDecoder, load_tiny_decoder
from millstream.models.weights.fingerprint import fingerprint_of
from millstream.parallel.compiled import check_backend, compile_blocks, let_compile
from millstream.parallel.tiles import choose_grid
from millstream.session.feed import FrameFeed, Frames, LiveFeed
from millstream.session.journal import Header, InputVideo, ParentJournal
from millstream.session.ports import ChunkLog, Transport
from millstream.session.session import Session, SharedParts
from millstream.wire.local import LocalTransport

WARM_UP_EPOCH = -1


class Engine:
    """Load a model and open sessions on it: on this device, or on the ranks of a topology.

    `Engine("brook", weights="bundled")` takes the fields of `EngineConfig` as keywords. It closes its ranks
    when it is closed, also as a context manager.
    """

    def __init__(
        self,
        config: EngineConfig | str,
        *,
        stream: StreamConfig | None = None,
        launch: Launch = launcher,
        **fields: Any,
    ) -> None:
        """A configuration, or a model's name and fields of one. `stream` is what a mesh is warmed up with, if
        not the model's own. `launch` is how the mesh of a topology that has one is started: by default, on
        this machine."""
        assert isinstance(config, str) or not fields, (
            f"a configuration says all: {', '.join(fields)} would not be heard"
        )
        self.config = config = config if isinstance(config, EngineConfig) else _config_of(config, **fields)
        self.spec = described(find_model(config.model), config.weights)
        self.topology = config.topology
        self.device = choose_device(config.device)
        self.dtype = choose_dtype(config.dtype, self.device)
        beside = find_beside(config.weights, config.loras)
        self.speed = fitting_speed(config.speed, self.spec, self.device, self.dtype, beside=beside)
        check_backend(config.compile_backend, self.speed)
        self.vae_devices = choose_vae_devices(config.vae_devices, self.spec)
        self.topology.check(self.spec.dit, exchange_groups=config.exchange_groups)
        place: dict[str, Any] = dict(device=self.device, dtype=self.dtype)
        preview = config.preview_decoder
        self.preview = load_tiny_decoder(Path(preview), self.spec, **place) if preview else None
        refuse_impossible(self.speed, self.device, self.dtype, self.spec.dit.head_width)
        self.model = accelerate(
            self._loaded(), self.speed if self.topology.is_local else of_pictures(self.speed), beside
        )
        stopwatch = Stopwatch(self.device)
        self._generator = self._generator_here(stopwatch) if self.topology.is_local else None
        self.mesh = None if self.topology.is_local else self._launched(launch)
        """Where the generator is spread over ranks."""
        transport = self.mesh or LocalTransport(self.generator)
        self._parts = SharedParts(
            transport=transport,
            vae=place_vae(self.model.vae, self.vae_devices, self.device),
            read_prompts=self.model.text.read,
            encode_prompts=self.model.text,
            latent_channels=self.spec.dit.channels,
            takes=self.spec.conditions,
            device=self.device,
            dtype=self.dtype,
            stopwatch=stopwatch,
            next_call_id=itertools.count(1).__next__,
            stream=lambda session, chunks: Stream(session, transport.post, ONE_AT_A_TIME, stopwatch).stream(
                chunks
            ),
            default_prompt=self.spec.default_prompt,
            watch=self.mesh.watch if self.mesh is not None else lambda session: None,
            ring_bytes=self._ring_bytes,
            rewind=config.rewind,
        )
        if self.mesh is not None:
            self._warm_up(self.mesh, stream or self.spec.stream)

    @property
    def generator(self) -> Generator:
        """Generator of this process."""
        if self._generator is None:
            raise MeshError(
                f"what sessions hold on {self.topology} stays there; use --topology local for this"
            )
        return self._generator

    @property
    def brake(self) -> Brake:
        """Brake that cuts chunks off. Chunks of a mesh end with their ranks."""
        return Brake() if self._generator is None else self._generator.brake

    @property
    def parts(self) -> SharedParts:
        """Parts that its sessions share."""
        return self._parts

    @property
    def depths(self) -> Depths:
        return depths_for(self.topology, self.device)

    @property
    def transport(self) -> Transport:
        return self._parts.transport

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the mesh go, where there is one; no process is left."""
        if self.mesh is not None:
            self.mesh.close()

    def fingerprint(self) -> str:
        """Return the fingerprint of all the model's weights, wherever they are."""
        if self.mesh is None:
            return self.model.fingerprint()
        here = {part: self.model.records(part) for part in PARTS if part != "dit"}
        return fingerprint_of(here | {"dit": self.mesh.weights()})

    @property
    def one_offs(self) -> int:
        """Meshes brought back so far, windows rebuilt on them, calls recorded: what a chunk took during one
        says nothing of the next."""
        if self.mesh is not None:
            return self.mesh.recoveries + self.mesh.rebuilt
        blocks = self.model.dit.blocks
        return blocks.one_offs if isinstance(blocks, RecordedStack) else 0

    def held_bytes(self) -> int:
        """Keys, values and prompts of all sessions on one device of the generator."""
        if self.mesh is not None:
            return self.mesh.held_bytes
        return self.generator.held_bytes()

    @property
    def visiting_bytes(self) -> int:
        """Device memory that is free and must stay so, because the text encoder comes back for each new
        prompt."""
        embedder = self.model.text.embedder
        return embedder.num_bytes if isinstance(embedder, OffloadedTextEncoder) else 0

    def chunks_until_warm(self, config: StreamConfig) -> int:
        """After so many chunks a session costs what it will always cost: where calls are recorded or blocks
        compiled, when all of them are."""
        if self.config.compile_backend:
            return config.chunks_to_fill + 1
        return config.chunks_to_fill + self.chunks_until_recorded(config) if self.speed.graphs else 1

    def warm_up(self, session: Session) -> None:
        """Have a session pay for everything that only first chunks pay for: kernels that are built, and calls
        that are recorded, of a full window and of one that fills. Those come once an epoch, so there are
        several. Blocks that run here and are compiled compile for no other session: what they have not seen
        by then runs as it is written."""
        config = session.config
        if self.mesh is None:
            let_compile(self.model.dit, True)
        for _ in session.stream(self.chunks_until_warm(config)):
            pass
        for _ in range(self.chunks_until_recorded(config) - 1):
            session.control(Cut())
            for _ in session.stream(config.chunks_to_fill):
                pass
        if self.mesh is None:
            let_compile(self.model.dit, False)

    def chunks_until_recorded(self, config: StreamConfig) -> int:
        """Return how many chunks that make the same calls it takes until those are recorded; one where
        nothing is."""
        if not self.speed.graphs:
            return 1
        calls = min(len(config.steps), len(config.opening_steps))
        return chunks_before(1 if self.speed.paired_commits else calls)  # the last commit's comes once

    def recorded_places(self, config: StreamConfig) -> int:
        """Sessions of which all calls can stay recorded; none where nothing is. Half is for what they share,
        and for others."""
        return MAX_RECORDINGS // (4 * config.chunks_to_fill) if self.speed.graphs else 0

    def run_commit(self, session_id: str) -> None:
        """Make the commit that a session owes, now that its pictures are out. Waits for it."""
        if self._generator is not None and self._generator.commits == "later":
            self._generator.run_commit(session_id)
            if self.device.type == "cuda":
                torch.cuda.current_stream(self.device).synchronize()

    def stream_config(self, schedule: str | None = None, **changes: Any) -> StreamConfig:
        """The model's own stream, with a published schedule and single settings laid over it."""
        return stream_config(self.spec.stream, schedule, **changes)

    def session(
        self,
        prompt: str | Sequence[WeightedPrompt],
        *,
        config: StreamConfig | None = None,
        frames: Iterable[Frames] | LiveFeed | None = None,
        journal: ChunkLog | None = None,
        session_id: str | None = None,
        **changes: Any,
    ) -> Session:
        """A new stream. `changes` are fields of StreamConfig; `frames` are an input video's, [H, W, 3] uint8
        RGB each."""
        prompts = (WeightedPrompt(prompt),) if isinstance(prompt, str) else tuple(prompt)
        config = config or self.stream_config(**changes)
        if config.stride != self.spec.stride:
            raise ConfigError(
                f"{self.spec.name} has {self.spec.stride} pixels a latent cell and the stream {config.stride}; "
                "make its configuration with Engine.stream_config"
            )
        choose_grid(
            config.latent_size, len(self.vae_devices) or 1
        )  # refused here rather than by its first picture
        preview = self.preview_for(config)
        return Session(
            session_id or secrets.token_hex(8),
            config,
            prompts,
            self._parts
            if preview is None
            else replace(self._parts, vae=PreviewVAE(self._parts.vae, preview)),
            feed=frames if frames is None or isinstance(frames, LiveFeed) else FrameFeed(frames),
            journal=journal,
        )

    def stream(
        self,
        session: Session,
        *,
        depths: Depths | None = None,
        before_plan: Callable[[], None] = lambda: None,
    ) -> Stream:
        """A session's chunks, as many under way as suits the place where the generator is."""
        return Stream(
            session,
            self.transport.post,
            depths or self.depths,
            self._parts.stopwatch,
            before_plan=before_plan,
        )

    def preview_for(self, config: StreamConfig) -> TinyDecoder | None:
        """Return the decoder that shows such a session's pictures, if there is one; None where pictures are
        encoded again: latents must not depend on it."""
        return None if config.anchor == "decoded" else self.preview

    def offload(self, session: Session) -> None:
        """Move a session that stands still to host memory."""
        self._move(session, "OFFLOAD", torch.device("cpu"))

    def bring_back(self, session: Session) -> None:
        """Bring a session back from host memory: it goes on to the same bits."""
        self._move(session, "RESTORE", self.device)

    def _move(self, session: Session, action: Action, device: torch.device) -> None:
        """Move a session with what it keeps of its past."""
        for name in (session.id, *session.trail.cache_ids):
            if self.mesh is not None:
                self.mesh.tell(action, name)
            else:
                self.generator.move(name, device)
        session.move(device)

    def journal_header(
        self,
        config: StreamConfig,
        session_id: str,
        *,
        video: InputVideo | None = None,
        num_frames: int | None = None,
        stream_batch: int = 1,
        parent: ParentJournal | None = None,
    ) -> Header:
        """Return all that a replay needs to know of this engine and one of its sessions."""
        return Header(
            model=self.spec.name,
            weights=self.config.weights,
            loras=self.config.loras,
            fingerprint=self.fingerprint(),
            config=config,
            session_id=session_id,
            **self.surroundings(),  # type: ignore[arg-type]
            input=video,
            num_frames=num_frames,
            stream_batch=stream_batch,
            parent=parent,
        )

    def surroundings(self) -> dict[str, str | int | Speed]:
        """Return what bits depend on besides weights and envelopes."""
        return {
            "device": self.device.type,
            "dtype": str(self.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "torch": str(torch.__version__),
            "millstream": __version__,
            "topology": str(self.topology),
            "exchange_groups": self.config.exchange_groups,
            "vae_strips": max(1, len(self.vae_devices)),
            "speed": self.speed,
            "compile": self.config.compile_backend or "off",
        }

    def _ring_bytes(self, config: StreamConfig) -> int:
        """Count the bytes of a session's keys and values, on all ranks together."""
        shape = RingShape.of(self.spec.dit, config)
        return (
            2
            * shape.layers
            * shape.window
            * shape.tokens_per_frame
            * self.spec.dit.width
            * self.dtype.itemsize
        )

    def _generator_here(self, stopwatch: Stopwatch) -> Generator:
        if self.config.compile_backend:
            compile_blocks(self.model.dit, backend=self.config.compile_backend)
        commits: Commits = "paired" if self.speed.paired_commits else "later"
        generator = Generator(self.model.dit, stopwatch, commits=commits)
        generator.injectors = self.model.injectors
        return generator

    def _launched(self, launch: Launch) -> MeshTransport:
        """Start a mesh and connect to it."""
        config = replace(self.config, speed=self.speed)
        mesh = MeshConfig.of(config, self.device, self.dtype, front_s=self._front_s())
        return MeshTransport(launch(mesh), self.device)

    def _front_s(self) -> float:
        """Return the seconds of the leader's device that pictures take for every model call, where a pipeline
        shares it with the front; 0 elsewhere."""
        if self.topology.pp == 1 or self.topology.front_apart or self.vae_devices:
            return 0.0
        return pictures_s(self.model.vae, self.spec, device=self.device, dtype=self.dtype)

    def _loaded(self) -> LoadedModel:
        """The plain model; its fingerprint is known before the fast path rearranges weights."""
        local = self.topology.is_local
        model = load_model(
            self.spec,
            self.config.weights,
            device=self.device,
            dtype=self.dtype,
            loras=self.config.loras,
            with_dit=local,
            offload_text=self.config.offload_text,
        )
        if self.vae_devices:
            model.vae.to(self.vae_devices[0])
        if not self.speed.any:
            return model
        return model.remembering("dit", "vae") if local else model.remembering("vae")

    def _warm_up(self, mesh: MeshTransport, stream: StreamConfig) -> None:
        """A few chunks through the ordinary way, during which ranks compare every collective; then each
        compares itself.

        Where blocks are compiled, the window is filled, so that every shape that comes has been there.
        """
        chunks = 2 + (stream.window // stream.frames_per_chunk if self.config.compile_backend else 0)
        with undone_by(mesh.close):
            with self.session("warm up", config=stream, session_id="warm-up") as session:
                session.timeline.epoch = WARM_UP_EPOCH
                for _ in session.stream(chunks):
                    pass
            mesh.check()


def _config_of(model: str, *, weights: str | Sequence[str], **fields: Any) -> EngineConfig:
    """Lists are as good as tuples, and one name as one of them."""
    if "head_groups" in fields:
        warnings.warn("head_groups is called exchange_groups now", FutureWarning, stacklevel=3)
        fields["exchange_groups"] = fields.pop("head_groups")
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return EngineConfig(
        model=model, weights=(weights,) if isinstance(weights, str) else tuple(weights), **fields
    )


def stream_config(base: StreamConfig, schedule: str | None = None, **changes: Any) -> StreamConfig:
    config = base if schedule is None else apply_schedule(base, schedule)
    try:
        return replace(config, **changes)
    except TypeError:
        unknown = sorted(set(changes) - set(StreamConfig.__dataclass_fields__))
        raise ConfigError(f"a stream has no setting {', '.join(unknown)}") from None
