"""What belongs to the whole process is changed in few places, and never across an await.

Warning filters, log levels, hooks of `sys`, the environment, signal handlers and the like are
shared by all tasks and threads: who changes and restores one around an await restores, with two
tasks at once, what the other one had set. So no coroutine changes any of it, no context manager
that does is open across an await, and every other place is named below with the reason why it is
safe.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from tools.lint.source import Function, Source

__all__ = ["process_state", "shared_variables"]

CHANGES = re.compile(
    r"""
    warnings\.(catch_warnings|filterwarnings|simplefilter|resetwarnings)
    | logging\.(disable|basicConfig|captureWarnings|setLoggerClass|setLogRecordFactory|addLevelName)
    | .*\.(setLevel|addHandler|removeHandler|addFilter|removeFilter)
    | sys\.(set\w+|addaudithook|path\.\w+|meta_path\.\w+|modules\.(pop|update|setdefault|clear))
    | threading\.(setprofile|settrace|stack_size)\w*
    | os\.(umask|f?chdir|putenv|unsetenv|nice|dup2|setpriority|sched_set\w+|set\w*[ug]id|setsid)
    | os\.(register_at_fork | environ\.(update|setdefault|pop|popitem|clear))
    | signal\.(signal|set_wakeup_fd|pthread_sigmask|setitimer|alarm|siginterrupt)
    | .*\.(add|remove)_signal_handler
    | locale\.setlocale | time\.tzset | random\.seed | np\.random\.seed | np\.(seterr\w*|set_\w+)
    | structlog\.(configure\w*|reset_defaults) | socket\.setdefaulttimeout | resource\.setrlimit
    | gc\.(enable|disable|freeze|unfreeze|set_\w+) | atexit\.(un)?register | faulthandler\.\w+
    | asyncio\.(_set_running_loop|set_event_loop\w*) | multiprocessing\.set_\w+
    | mallopt | pa\.set_\w+ | mimetypes\.(init|add_type) | codecs\.(un)?register\w*
    | sqlite3\.(register_\w+|enable_\w+)
    """,
    re.VERBOSE,
)

ALLOWED = {
    "adapters/ray.py _check": "the node's actor is a process of its own",
    "cli/servers.py command_http": "a command is a process of its own",
    "cli/main.py _ended_by_sigterm": "",
    "cli/main.py main": "",
    "cli/servers.py command_mcp": "",
    "cli/workers.py command_owners": "",
    "cli/workers.py command_serve": "",
    "cluster/serve.py main": "an owner is a process of its own, and has nothing else yet",
    "runtime/threads.py": "once, at import",
    "runtime/threads.py switch_as_before": "restores what it set, but for those who are counted",
    "runtime/threads.py switch_often": "too early or late an end costs time alone",
    "storage/lance/loading.py import_lancedb": "once: a level, and a module that runs later",
    "storage/lance/allocators.py limit_arenas": "once, and for good",
    "storage/lance/allocators.py set_arrow_pool": "once, and for good",
    "storage/sqlite/connection.py": "once, at import",
    "system/forks.py _give_up": "in a child that was forked",
    "system/forks.py run_at_fork": "once for each module, at import",
    "system/processes.py _forget_signals": "in a child that was forked",
    "system/processes.py _hold_signals": "of one thread, around a fork",
    "system/processes.py _let_signals": "",
    "system/processes.py allow_files": "more open files, once and for good",
    "system/processes.py lower_priority": "once and for good, in a command's process",
    "system/processes.py on_end_signals": "once, for as long as an owner's process lives",
    "testing/simulation/loop.py _silence": "the simulated loop is dead: nothing else runs",
    "testing/simulation/loop.py close_tasks": "",
    "testing/simulation/loop.py run_forever": "as asyncio's own loop does",
}
"""Module and function (none: at import) that may change the process, and why nobody is harmed."""

OWN_PROCESS = {
    "cluster/owner.py _warm_up": "an owner is a process of its own: freezes objects once",
}
"""Coroutines that may, for good and in a process of their own."""

SHARED = {
    "cluster/connected.py _connected": "changed on event loops by single steps of the interpreter",
    "languages/patterns.py _patterns": "modules add to it when they are imported",
    "runtime/probes.py _counters": "tests alone count",
    "runtime/threads.py _loading": "single steps of the interpreter",
    "runtime/threads.py _running": "single steps of the interpreter",
    "services/answering.py _threads": "single steps of the interpreter",
    "system/forks.py _descriptors": "single steps of the interpreter",
    "tokens.py _later": "set once, by the main function of a process",
    "tokens.py _loaded": "under a lock",
}
"""Variables of modules that functions change, and why several threads may."""

MUTATORS = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem",
    "popleft", "remove", "setdefault", "update",
}  # fmt: skip
CONTAINERS = {
    "set", "dict", "list", "deque", "defaultdict", "OrderedDict", "Counter", "WeakSet",
    "WeakKeyDictionary", "WeakValueDictionary",
}  # fmt: skip


def process_state(files: Sequence[Source]) -> Iterator[str]:
    """No coroutine changes what the whole process shares; other places are on the list above."""
    modules = {
        file.name.removeprefix("remora/"): file
        for file in files
        if file.name.startswith("remora/") and file.name.endswith(".py")
    }
    changed = {module: _changes(file) for module, file in modules.items()}
    contexts = _changing_contexts(modules, changed)
    for module, file in modules.items():
        yield from _violations(file, module, changed[module], contexts)
    if len(modules) < 2:  # an example of a rule's test
        return
    places = {
        f"{module} {function.name}" if function is not None else module
        for module, found in changed.items()
        for function, _ in found
    }
    for place in {*ALLOWED, *OWN_PROCESS} - places:
        yield f"{place}: changes nothing of the process: take it off the list"


def shared_variables(files: Sequence[Source]) -> Iterator[str]:
    """A variable of a module that functions change is named above, with why threads may."""
    found = {
        f"{file.name.removeprefix('remora/')} {name}"
        for file in files
        if file.name.startswith("remora/") and file.name.endswith(".py")
        for name in _shared_in(file)
    }
    yield from (f"{place}: functions change this variable" for place in sorted(found - set(SHARED)))
    if len(files) > 1:
        yield from (f"{place}: no function changes it" for place in sorted(set(SHARED) - found))


def _imported_modules(file: Source) -> set[str]:
    """Names that are modules here."""
    return {
        (one.asname or one.name).partition(".")[0]
        for _, node in file.nodes
        if isinstance(node, ast.Import)
        for one in node.names
    }


def _root_of(node: ast.AST) -> str:
    """The name that a chain of attributes and subscripts begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _targets_of(node: ast.AST) -> list[ast.expr]:
    """What a statement assigns to or deletes, where that is part of something else."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            found = targets
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            found = [target]
        case _:
            return []
    every = [one for target in found for one in ast.walk(target)]
    return [one for one in every if isinstance(one, ast.Attribute | ast.Subscript)]


def _changes(file: Source) -> list[tuple[Function | None, str]]:
    """What a module's code changes of the process, with the function that does."""
    modules = _imported_modules(file)
    found = []
    for function, node in file.nodes:
        if isinstance(node, ast.Call) and CHANGES.fullmatch(_dotted(node.func)):
            found.append((function, _dotted(node.func)))
        found += [
            (function, ast.unparse(target))
            for target in _targets_of(node)
            if _root_of(target) in modules
        ]
    return found


def _dotted(node: ast.AST) -> str:
    """A name with attributes; what else an attribute is of is left out."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _waits(nodes: list[ast.stmt]) -> bool:
    """Whether other tasks may run while these statements do."""
    inner = [one for statement in nodes for one in ast.walk(statement)]
    return any(
        isinstance(one, ast.Await | ast.AsyncFor | ast.AsyncWith | ast.Yield) for one in inner
    )


def _name_of(node: ast.AST) -> str:
    """The last name of what is called."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _changing_contexts(
    modules: Mapping[str, Source],
    changed: Mapping[str, Sequence[tuple[Function | None, str]]],
) -> set[str]:
    """Context managers that change something of the process, or call what does next to them."""
    found = set()
    for module, file in modules.items():
        changing = {function.name for function, _ in changed[module] if function is not None}
        found |= {
            node.name
            for _, node in file.nodes
            if isinstance(node, Function)
            and any("contextmanager" in ast.unparse(one) for one in node.decorator_list)
            and not changing.isdisjoint({node.name, *_calls_in(node)})
        }
    return found


def _calls_in(function: Function) -> set[str]:
    """The last names of what a function calls."""
    return {_name_of(node) for node in ast.walk(function) if isinstance(node, ast.Call)}


def _violations(
    file: Source,
    module: str,
    changed: Sequence[tuple[Function | None, str]],
    contexts: set[str],
) -> Iterator[str]:
    """What a module does that two tasks at once must not."""
    for function, what in changed:
        place = f"{module} {function.name}" if function is not None else module
        if isinstance(function, ast.AsyncFunctionDef):
            if place not in OWN_PROCESS:
                yield f"{place}: a coroutine changes the process: {what}"
        elif place not in ALLOWED:
            yield f"{place}: changes the process: {what}"
    for function, node in file.nodes:
        if isinstance(node, ast.AsyncFunctionDef) and any(
            _name_of(one) in contexts for one in node.decorator_list
        ):
            yield f"{module} {node.name}: a coroutine function is decorated"
        if not isinstance(function, ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.With) and _waits(node.body):
            names = {_name_of(item.context_expr) for item in node.items} & contexts
            yield from (f"{module} {function.name}: {one} is open across an await" for one in names)
        resets = isinstance(node, ast.Call) and _name_of(node) == "reset" and len(node.args) == 1
        if resets and any(isinstance(one, ast.Yield) for one in ast.walk(function)):
            yield f"{module} {function.name}: its caller's context may be another one"


def _shared_in(file: Source) -> set[str]:
    """Variables of a module that its functions change."""
    held = {
        target.id
        for node in file.tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
        and (
            isinstance(node.value, ast.Dict | ast.List | ast.Set)
            or (isinstance(node.value, ast.Call) and _name_of(node.value) in CONTAINERS)
        )
    }
    changed = set()
    for function, node in file.nodes:
        if function is None:
            continue
        if isinstance(node, ast.Global):
            changed.update(node.names)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if node.func.attr in MUTATORS and isinstance(owner, ast.Name) and owner.id in held:
                changed.add(owner.id)
        changed.update({_root_of(target) for target in _targets_of(node)} & held)
    return changed
