"""Nodes of a memory that several machines share, on the machines of a Ray cluster.

Needs the extra: ``pip install "remora[ray]"``. See docs/how-to/ray.md.

A node is ``remora serve`` in a process of its own, which a detached actor starts. Ray says on which
machine, and starts the actor again, there or elsewhere, when the node or its machine dies. It
decides nothing else: who owns which shard is in PostgreSQL. So a node that Ray has given up, and
that is still alive, is one more node, and not a second owner.

All functions block: on an event loop, call them in a thread.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from remora import observe
from remora.adapters.versions import warn_if_untested
from remora.cluster.machines import Address, read_machines
from remora.cluster.target import read_target
from remora.errors import InvalidInput, OwnerFailed, OwnerUnreachable, RemoraError
from remora.logging import get_logger
from remora.services.arguments import check_int, check_path, check_seconds, check_text
from remora.system.processes import kill_apart

try:
    import ray
    from ray.exceptions import RayActorError
    from ray.util import get_node_ip_address, list_named_actors
except ImportError as e:
    raise ImportError('nodes on a Ray cluster need Ray: pip install "remora[ray]"') from e

__all__ = ["NodeStatus", "read_nodes", "scale_nodes"]

warn_if_untested("ray")

_logger = get_logger(__name__)
_NAMESPACE = "remora"
_MOST = 1_000
_LEAVE_S = 60.0
_ANSWER_S = 3.0
_PAUSE_S = 1.0
_LOOK_S = 0.2
_ENDED = "it has ended, and Ray starts it again"
_DIRECTORY, _LISTEN = "REMORA_DIRECTORY", "REMORA_CLUSTER__LISTEN"
# Ray leaves the children of a process that is killed. This one leaves politely: its parent's death
# sends it SIGTERM (PR_SET_PDEATHSIG), unless the parent had died before it could say so.
_CHILD = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, "-m", "remora", "serve", sys.argv[2]])
"""


class NodeStatus(msgspec.Struct, frozen=True):
    """The state of a node.

    Attributes:
        name: of its actor, in the namespace ``remora``.
        target: what it serves; empty, as what follows, while there is no answer.
        host: address of its machine.
        pid: its process there.
        ready: whether it serves the shards that are its own.
        problem: why not, or what is degraded.
    """

    name: str
    target: str = ""
    host: str = ""
    pid: int = 0
    ready: bool = False
    problem: str = ""


def scale_nodes(
    target: str | Path,
    count: int,
    *,
    name: str = "memory",
    num_cpus: float = 1.0,
    resources: Mapping[str, float] | None = None,
    timeout_s: float = 120.0,
) -> tuple[NodeStatus, ...]:
    """Have so many nodes of a memory: start those that are missing, tell the others to leave.

    They outlive this program. Nodes that run already stay as they are, and those that leave answer
    first what they have accepted. Each has a new directory of its machine's temporary ones, and an
    address of that machine: both come from the environment, so a target that is a function takes
    its configuration from there too (`Config.from_file`, `Config.from_environment`). Secrets are
    read on each machine.

    Args:
        target: as for ``remora serve``; it must be there on each machine of the cluster.
        count: how many; with 0 all leave.
        name: tells the nodes of several memories apart.
        num_cpus: what Ray sets aside for a new node.
        resources: likewise; ``{"memory_node": 1}``, for instance, places them on machines that
            offer this.
        timeout_s: how long to wait until all are ready.

    Returns:
        The nodes, when all are ready.

    Raises:
        InvalidInput: an argument cannot be that, this program has not connected to Ray, the nodes
            of this name serve another target, or an actor of this name is none of a node.
        OwnerFailed: a machine cannot use the target; the text says why, and no such node is left.
        OwnerUnreachable: not all were ready in time. They stay: Ray goes on starting them. Or
            another program has told one of them to leave.
    """
    text = _check_target(target)
    check_int(count, "count", high=_MOST)
    options = _check_options(num_cpus, resources)
    limit_s = check_seconds(timeout_s, "timeout_s")
    present = _find_actors(name)
    found = _ask(present)
    _check_targets(found, text)
    actors = {}
    for number in range(count):
        own = f"{name}-{number}"
        actors[own] = present.pop(own, None) or _make_actor(own, text, options)
    _stop(name, present, [one.name for one in found if one.pid])
    return _wait(name, actors, text, math.inf if limit_s is None else limit_s)


def read_nodes(name: str = "memory") -> tuple[NodeStatus, ...]:
    """The nodes of a name, and how they are.

    Raises:
        InvalidInput: the name cannot be that, this program has not connected to Ray, or an actor
            of this name is none of a node.
    """
    return _ask(_find_actors(name))


# -- what a program does -------------------------------------------------------------------------


def _check_target(target: str | Path) -> str:
    check_path(target, "target")
    text = os.fspath(target)
    if not text or text.startswith(("postgresql:", "postgres:")):
        raise InvalidInput(
            "target must be a function, module:function, or the path of a configuration file on "
            "each machine"
        )
    return text


def _check_options(num_cpus: float, resources: Mapping[str, float] | None) -> dict[str, Any]:
    given = {"num_cpus": num_cpus, **(resources or {})}
    for key, value in given.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value < math.inf:
            raise InvalidInput(f"{key} must be a number, at least 0, not {value!r:.60}")
    return {"num_cpus": num_cpus, "resources": dict(resources or {})}


def _check_targets(found: Sequence[NodeStatus], target: str) -> None:
    for one in found:
        if one.target not in {"", target}:
            raise InvalidInput(
                f"{one.name} serves {one.target}, not {target}: give these nodes another name, or "
                "scale the others to 0 first"
            )


def _find_actors(name: str) -> dict[str, Any]:
    """The actors of the nodes of a name, by their names."""
    if not check_text(name, "name") or not name.isprintable():
        raise InvalidInput(f"name must be a name that can be printed, not {name!r:.60}")
    if not ray.is_initialized():  # Ray would start a cluster of its own
        raise InvalidInput('connect to the Ray cluster first: ray.init("auto")')
    found = {}
    for one in list_named_actors(all_namespaces=True):
        stem, _, number = one["name"].rpartition("-")
        if one["namespace"] == _NAMESPACE and stem == name and number.isdecimal():
            with suppress(ValueError):  # it has ended since
                found[one["name"]] = ray.get_actor(one["name"], namespace=_NAMESPACE)
    for own, actor in found.items():
        if not (hasattr(actor, "status") and hasattr(actor, "stop")):
            raise InvalidInput(
                f"the actor {own} in Ray's namespace {_NAMESPACE} is none of a node: give these "
                "nodes another name"
            )
    return found


def _make_actor(name: str, target: str, options: Mapping[str, Any]) -> Any:
    actor = ray.remote(_NodeActor).options(
        name=name,
        namespace=_NAMESPACE,
        get_if_exists=True,  # another program may scale as well
        lifetime="detached",
        max_restarts=-1,
        scheduling_strategy="SPREAD",
        **options,
    )
    return actor.remote(name, target)


def _ask(actors: Mapping[str, Any]) -> tuple[NodeStatus, ...]:
    asked = {name: actor.status.remote() for name, actor in actors.items()}
    if asked:
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=_ANSWER_S)
    return tuple(_read_answer(name, answer) for name, answer in asked.items())


def _read_answer(name: str, answer: Any) -> NodeStatus:
    try:
        found: NodeStatus = ray.get(answer, timeout=0)
    except TimeoutError:
        return NodeStatus(
            name,
            problem="no answer: Ray has not started it (`ray status` says what is missing), or its "
            "actor or its machine hangs",
        )
    except RayActorError as e:
        text = str(e).strip()
        if e.actor_init_failed:
            raise OwnerFailed(f"{name} cannot serve: {text.splitlines()[-1]}", log=text) from e
        return NodeStatus(name, problem=_ENDED)
    return found


def _wait(
    name: str, actors: Mapping[str, Any], target: str, limit_s: float
) -> tuple[NodeStatus, ...]:
    end = time.monotonic() + limit_s
    while True:
        found = _ask(actors)
        _check_targets(found, target)  # another program may have made it
        _check_ended(name, [one.name for one in found if one.problem == _ENDED])
        late = [f"{one.name} ({one.problem})" for one in found if not one.ready]
        if not late:
            return found
        if time.monotonic() > end:
            raise OwnerUnreachable(
                f"not ready within timeout_s ({limit_s:g} s): {', '.join(late)}; the logs of these "
                "actors, which Ray keeps, say why"
            )
        time.sleep(_LOOK_S)


def _check_ended(name: str, ended: Collection[str]) -> None:
    """Check that Ray starts these again."""
    if ended and (gone := sorted(set(ended) - _find_actors(name).keys())):
        raise OwnerUnreachable(
            f"{', '.join(gone)}: another program has told this node to leave, or ended its actor, "
            "so Ray does not start it again"
        )


def _stop(name: str, actors: Mapping[str, Any], running: Collection[str]) -> None:
    """Have nodes leave, and end their actors; those that do not run have nothing to leave."""
    told = [actor.stop.remote() for one, actor in actors.items() if one in running]
    if told:
        ray.wait(told, num_returns=len(told), timeout=_LEAVE_S + _ANSWER_S)
    for actor in actors.values():
        ray.kill(actor)
    end = time.monotonic() + _ANSWER_S
    while actors.keys() & _find_actors(name).keys() and time.monotonic() < end:
        time.sleep(_LOOK_S)


# -- what Ray runs -------------------------------------------------------------------------------


class _NodeActor:
    """The actor of a node, which `scale_nodes` makes; it ends when the node's process does."""

    def __init__(self, name: str, target: str) -> None:
        self._name = name
        self._target = target
        self._host = str(get_node_ip_address())
        self._leaves = False
        self._directory = Path(tempfile.mkdtemp(prefix="remora-node-"))
        try:
            self._check()
            self._process = self._start()
        except Exception:
            if not ray.get_runtime_context().was_current_actor_reconstructed:
                shutil.rmtree(self._directory, ignore_errors=True)
                raise
            # Ray gives an actor up whose constructor raises, and what is wrong may pass
            _logger.exception("node_not_started", name=name, target=target)
            self._end()
        threading.Thread(target=self._watch, name="remora.node", daemon=True).start()

    def status(self) -> NodeStatus:
        """How the node is."""
        try:
            found = observe.ask(self._directory)
        except RemoraError as e:
            ready, problem = False, str(e)
        else:
            ready = found is not None and found.health.ready
            problem = "it starts, or waits for PostgreSQL"
            if found is not None:
                problem = "; ".join(one.text for one in found.health.problems)
        return NodeStatus(
            self._name, self._target, self._host, self._process.pid, ready=ready, problem=problem
        )

    def stop(self) -> None:
        """Have the node give its shards back; returns when it has ended."""
        self._leaves = True
        self._process.terminate()
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            kill_apart(self._process)
            self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _check(self) -> None:
        """Set the node's directory and address, and check that the target takes them."""
        given = {_DIRECTORY: str(self._directory), _LISTEN: str(Address(self._host, 0))}
        os.environ.update(given)
        found = read_target(self._target)
        read_machines(found.config)
        taken = {_DIRECTORY: str(found.directory), _LISTEN: found.config.cluster.listen}
        for name, value in given.items():
            if taken[name] != value:
                raise InvalidInput(
                    f"{self._target} does not take {name} from the environment, and no two nodes "
                    "may have the same: name no directory, and read the configuration by "
                    "remora.Config.from_file or from_environment"
                )

    def _start(self) -> subprocess.Popen[bytes]:
        """The node's process. Its log goes where Ray keeps that of the actor."""
        command = [sys.executable, "-c", _CHILD, str(os.getpid()), self._target]
        path = os.pathsep.join(one for one in sys.path if one)  # as the target was found
        return subprocess.Popen(  # noqa: S603  # our own interpreter
            command,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )

    def _watch(self) -> None:
        code = self._process.wait()
        if not self._leaves:
            _logger.error("node_ended", name=self._name, code=code)
            self._end()

    def _end(self) -> NoReturn:
        """End the actor's process as by a crash, after which Ray starts it again."""
        shutil.rmtree(self._directory, ignore_errors=True)
        time.sleep(_PAUSE_S)
        os._exit(1)
