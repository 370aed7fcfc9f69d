"""The machine of a chaos run: one server with its disk, its network, its clock, and everything that can befall it."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from fluss.errors import FlussError
from fluss.server.coordinator.metadata.metadata_store import FILE_NAME as METADATA_FILE
from fluss.testing.faultnet import FaultProxy, Faults
from fluss.testing.forked_servers import Conditions, ForkedServer, ServerForks
from tests.chaos.loop_disk import LoopDisk
from tests.chaos.remote_objects import RemoteObjects, away
from tests.ports import free_port

DAY_MS: Final = 24 * 60 * 60 * 1000
_DAMAGED_BYTES_MAX: Final = 64
REMOTE: Final = "remote.data.dir"
# A limit of open files below which everything is taken.
_NO_DESCRIPTORS: Final = 3
# Small segments, so that there are many, and checkpoints so often that some are just being written.
# A disk that was full is looked at soon.
_OPTIONS: Final = {
    "log.segment.file-size": "64kb",
    "log.flush.offset.checkpoint-interval": "300ms",
    "server.data-disk.check-interval": "200ms",
}


class Disk(StrEnum):
    """What a server has its files on."""

    PLAIN = "plain"
    # Files whose unsynced parts can be lost (fluss.testing.faultfs).
    LOSING = "losing"
    # A file system of its own (tests.chaos.loop_disk).
    LOOP = "loop"


class Fault(StrEnum):
    """What can happen. Most of it ends with a new start of the server."""

    KILL = "kill"
    KILL_IN_RECOVERY = "kill-in-recovery"
    KILL_WHILE_PAUSED = "kill-while-paused"
    STORE_DAMAGE = "store-damage"
    REMOTE_AWAY = "remote-away"
    POWER = "power"
    POWER_IN_RECOVERY = "power-in-recovery"
    STOP = "stop"
    PAUSE = "pause"
    CLOCK = "clock"
    DISK_FULL = "disk-full"
    DESCRIPTORS = "descriptors"
    NETWORK_CUT = "network-cut"
    NETWORK_STALL = "network-stall"
    NETWORK_REFUSAL = "network-refusal"


KILLS: Final = frozenset({Fault.KILL, Fault.KILL_IN_RECOVERY, Fault.KILL_WHILE_PAUSED, Fault.STORE_DAMAGE})
_NETWORK: Final = (Fault.NETWORK_CUT, Fault.NETWORK_STALL, Fault.NETWORK_REFUSAL)


class Machine:
    """A server that is always brought back, at the same address with the same data. A context manager."""

    def __init__(
        self,
        directory: Path,
        forks: ServerForks,
        rng: random.Random,
        *,
        disk: Disk,
        has_proxy: bool,
        options: Mapping[str, str],
    ) -> None:
        self.counts: Counter[Fault] = Counter()
        # How often a process was killed, and how often that was while it started.
        self.kill_count = 0
        self._directory = directory
        self._forks = forks
        self._rng = rng
        self._disk = disk
        self._options = options
        self._loop_disk: LoopDisk | None = None
        self._proxy = FaultProxy(seed=rng.getrandbits(32)) if has_proxy else None
        self._running = ExitStack()
        self._server: ForkedServer | None = None
        # Its own, also between two lives.
        self._port = free_port()
        self._data_dir = directory / "data"
        directory.mkdir(parents=True, exist_ok=True)
        self._conditions = Conditions(directory / "conditions")

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._disk is Disk.LOOP:
                self._loop_disk = stack.enter_context(LoopDisk(self._directory / "loop"))
                self._data_dir = self._loop_disk.path / "data"
            stack.callback(self._end)
            if self._proxy is not None:
                stack.enter_context(self._proxy)
            self._start()
            self._running = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._running.close()

    def _end(self) -> None:
        if self._server is not None:
            self._server.kill()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._proxy.port if self._proxy is not None else self._port}"

    def possible_faults(self) -> list[Fault]:
        """Return what can happen to this machine."""
        possible = [*KILLS, Fault.STOP, Fault.PAUSE, Fault.CLOCK, Fault.DESCRIPTORS]
        if self._disk is not Disk.PLAIN:
            possible += [Fault.POWER, Fault.POWER_IN_RECOVERY, Fault.DISK_FULL]
        if self._proxy is not None:
            possible += _NETWORK
        if self._disk is not Disk.LOSING and REMOTE in self._options:
            possible.append(Fault.REMOTE_AWAY)
        return sorted(possible)

    async def suffer(self, fault: Fault) -> None:
        """Let a fault happen, and be over."""
        self.counts[fault] += 1
        happen: dict[Fault, Callable[[], Awaitable[None]]] = {
            Fault.KILL: self._be_killed,
            Fault.KILL_IN_RECOVERY: self._be_killed_in_recovery,
            Fault.KILL_WHILE_PAUSED: self._be_killed_while_paused,
            Fault.STORE_DAMAGE: self._lose_a_store,
            Fault.REMOTE_AWAY: self._lose_sight_of_remote,
            Fault.POWER: self._lose_power,
            Fault.POWER_IN_RECOVERY: self._lose_power_in_recovery,
            Fault.STOP: self._stop,
            Fault.PAUSE: self._pause,
            Fault.CLOCK: self._jump,
            Fault.DISK_FULL: self._run_full,
            Fault.DESCRIPTORS: self._run_out_of_descriptors,
            Fault.NETWORK_CUT: self._cut,
            Fault.NETWORK_STALL: self._stall,
            Fault.NETWORK_REFUSAL: self._refuse,
        }
        await happen[fault]()

    def remote_objects(self) -> RemoteObjects | None:
        """Return what remote storage has; None if there is none."""
        if REMOTE not in self._options:
            return None
        return RemoteObjects(self._data_dir / METADATA_FILE, Path(self._options[REMOTE]))

    async def stop(self) -> int | None:
        """Stop the server in order and return its exit code."""
        assert self._server is not None
        return await asyncio.to_thread(self._server.stop)

    # Lives

    def _begin_life(self) -> ForkedServer:
        options = {**_OPTIONS, **self._options}
        if self._proxy is not None:
            options["advertised.listeners"] = f"FLUSS://127.0.0.1:{self._proxy.port}"
        return self._forks.start(
            self._data_dir,
            options,
            port=self._port,
            log_file=self._directory / "server.log",
            conditions=self._conditions,
            loss_seed=self._rng.getrandbits(32) if self._disk is Disk.LOSING else None,
        )

    def _start(self) -> None:
        try:
            self._server = self._begin_life().wait_until_ready()
        except FlussError as error:
            raise AssertionError(f"the server did not start again: {error}") from error
        if self._proxy is not None:
            self._proxy.upstream_port = self._port

    async def _restart(self) -> None:
        # Some clients get to know that nobody is there, others do not.
        await asyncio.sleep(self._rng.choice([0, 0, 0, 0.05, 0.3]))
        await asyncio.to_thread(self._start)

    def _kill(self) -> None:
        assert self._server is not None
        self._server.kill()
        self.kill_count += 1

    # Faults

    async def _be_killed(self) -> None:
        await asyncio.to_thread(self._kill)
        await self._restart()

    async def _be_killed_in_recovery(self) -> None:
        await asyncio.to_thread(self._kill)
        for _ in range(self._rng.randint(1, 4)):
            self._server = self._begin_life()
            await asyncio.sleep(self._rng.uniform(0, 0.15))
            await asyncio.to_thread(self._kill)
        await self._restart()

    async def _be_killed_while_paused(self) -> None:
        assert self._server is not None
        self._server.pause()
        await asyncio.sleep(self._rng.uniform(0, 0.2))
        await self._be_killed()

    async def _lose_a_store(self) -> None:
        await asyncio.to_thread(self._kill)
        damage_store(self._data_dir, self._rng)
        await self._restart()

    async def _lose_sight_of_remote(self) -> None:
        is_killed = self._rng.random() < 0.5
        with away(Path(self._options[REMOTE])):
            await asyncio.sleep(self._rng.uniform(0.05, 0.5))
            if is_killed:
                # It starts without remote storage, too.
                await self._be_killed()
                await asyncio.sleep(self._rng.uniform(0, 0.3))

    async def _lose_power(self) -> None:
        await self._turn_off()
        await self._restart()

    async def _lose_power_in_recovery(self) -> None:
        await self._turn_off()
        for _ in range(self._rng.randint(1, 3)):
            self._server = self._begin_life()
            await asyncio.sleep(self._rng.uniform(0, 0.3))
            await self._turn_off()
        await self._restart()

    async def _turn_off(self) -> None:
        assert self._server is not None
        if self._loop_disk is not None:
            # A machine without power acknowledges nothing. A sync that is under way while a file system is shut down
            # may say that all went well, and the server would pass it on.
            await asyncio.to_thread(self._server.stand_still)
            await asyncio.to_thread(self._loop_disk.lose_power)
            await asyncio.to_thread(self._kill)
            await asyncio.to_thread(self._loop_disk.recover)
        else:
            await asyncio.to_thread(self._server.lose_power)
            self.kill_count += 1

    async def _stop(self) -> None:
        code = await self.stop()
        if code != 0:
            raise AssertionError(f"the server ended with {code} when asked to stop")
        await self._restart()

    async def _pause(self) -> None:
        assert self._server is not None
        self._server.pause()
        await asyncio.sleep(self._rng.uniform(0, 0.5))
        self._server.resume()

    async def _jump(self) -> None:
        # Less than what makes writers and segments expire: that time is over is not what is tested here.
        self._conditions.set(clock_offset_ms=self._rng.randint(-2 * DAY_MS, 2 * DAY_MS))
        await asyncio.sleep(0.05)

    async def _run_full(self) -> None:
        if self._loop_disk is not None:
            await asyncio.to_thread(self._loop_disk.fill)
        self._conditions.set(is_disk_full=True)
        is_killed = self._rng.random() < 0.5
        is_started_full = is_killed and self._rng.random() < 0.5
        try:
            await asyncio.sleep(self._rng.uniform(0.05, 0.5))
            if is_killed:
                await asyncio.to_thread(self._kill)
            if is_started_full:
                is_killed = not await asyncio.to_thread(self._starts_on_full_disk)
        finally:
            self._conditions.set(is_disk_full=False)
            if self._loop_disk is not None:
                await asyncio.to_thread(self._loop_disk.empty)
        # One that was not killed goes on by itself when there is room again.
        if is_killed:
            await self._restart()

    def _starts_on_full_disk(self) -> bool:
        """Start on a full disk; return whether that worked. A server that does not says what is the matter."""
        self._server = self._begin_life()
        try:
            self._server.wait_until_ready()
        except FlussError as error:
            if "no room left" not in str(error):
                raise AssertionError(f"on a full disk the server says: {error}") from error
            return False
        return True

    async def _run_out_of_descriptors(self) -> None:
        assert self._server is not None
        # A few more than it has, or none at all: then files that it keeps open for later are no help.
        some = self._server.descriptor_count + self._rng.randint(0, 6)
        self._server.limit_descriptors(self._rng.choice([some, _NO_DESCRIPTORS]))
        await asyncio.sleep(self._rng.uniform(0.05, 0.4))
        self._server.limit_descriptors(None)

    async def _cut(self) -> None:
        await self._have_network(Faults(cut_after_bytes=(1, 20_000), delay_s=(0.0, 0.003)))

    async def _stall(self) -> None:
        await self._have_network(Faults(stalls=True))

    async def _refuse(self) -> None:
        await self._have_network(Faults(refuses=True))

    async def _have_network(self, faults: Faults) -> None:
        assert self._proxy is not None
        self._proxy.faults = faults
        if not faults.stalls:
            await asyncio.to_thread(self._proxy.cut_all)
        await asyncio.sleep(self._rng.uniform(0.1, 0.6))
        self._proxy.faults = Faults()
        # Connections keep the place at which they are cut.
        await asyncio.to_thread(self._proxy.cut_all)


def damage_store(data_dir: Path, rng: random.Random) -> bool:
    """Delete a key-value store of a dead server, or some of its bytes. The log, from which it is made, stays."""
    stores = sorted(path.parent for path in data_dir.rglob("CURRENT") if "snapshots" not in str(path))
    if not stores:
        return False
    store = rng.choice(stores)
    files = sorted(path for path in store.iterdir() if path.is_file() and path.stat().st_size)
    match rng.randrange(4):
        case 0:
            shutil.rmtree(store)
        case 1:
            rng.choice(files).unlink()
        case 2:
            file = rng.choice(files)
            os.truncate(file, rng.randrange(file.stat().st_size))
        case _:
            file = rng.choice(files)
            with file.open("r+b") as opened:
                opened.seek(rng.randrange(file.stat().st_size))
                opened.write(rng.randbytes(rng.randint(1, _DAMAGED_BYTES_MAX)))
    return True
