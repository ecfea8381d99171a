"""What must not be asked of LanceDB 0.40.

Each was measured to inject, to lose rows, to skip them, or to hold the event loop.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from tools.lint.source import Source

__all__ = ["lancedb"]

FILTERS = {
    "where",
    "delete",
    "count_rows",
    "update",
    "when_matched_update_all",
    "when_not_matched_by_source_delete",
}
# (module, function) that may: numbers of ours become a filter; the table's one writer merges
FILTERS_OF_NUMBERS = {("shard.py", "_rows_from")}
MERGES = ("shard.py", "merge")


def lancedb(files: Sequence[Source]) -> Iterator[str]:
    """No filter from text, merge side by side, fast_search, tags, LSM, list of dicts, cleaning."""
    for file in files:
        if file.name.startswith("remora/") and file.name.endswith(".py"):
            yield from (f"{file.name}: {found}" for found in _violations(file))


def _text(node: ast.AST) -> bool:
    """It is a text that is put together."""
    return any(
        isinstance(one, ast.JoinedStr)
        or (
            isinstance(one, ast.BinOp)
            and isinstance(one.op, ast.Mod | ast.Add)
            and isinstance(one.left, ast.Constant | ast.JoinedStr)
        )
        or (
            isinstance(one, ast.Call)
            and isinstance(one.func, ast.Attribute)
            and one.func.attr in {"format", "join", "to_sql"}
        )
        for one in ast.walk(node)
    )


def _violations(file: Source) -> list[str]:
    lance, module = "lance" in file.text, file.name.rpartition("/")[2]
    found = []
    for inside, call in file.nodes:
        if not isinstance(call, ast.Call):
            continue
        function = inside.name if inside is not None else ""
        name = (
            call.func.attr
            if isinstance(call.func, ast.Attribute)
            else call.func.id
            if isinstance(call.func, ast.Name)
            else ""
        )
        options = {option.arg: option.value for option in call.keywords}
        place = (module, function)
        arguments = [*call.args, *options.values()]
        if name == "to_sql":
            found.append("Expr.to_sql(): a quote behind a backslash gets out of it")
        if name == "fast_search":
            found.append("fast_search: skips rows that no index has")
        if name in {"set_lsm_write_spec", "flush_lsm", "compact_lsm", "checkpoint_lsm"}:
            found.append("LSM: loses acknowledged rows")
        if not lance:
            continue
        if (
            name in FILTERS
            and place not in FILTERS_OF_NUMBERS
            and any(_text(one) for one in arguments)
        ):
            found.append(f"{name}: a filter put together from text can be injected")
        if (
            name == "update"
            and "where" in options
            and not (
                isinstance(options["where"], ast.Constant)
                or (
                    isinstance(options["where"], ast.Call)
                    and getattr(options["where"].func, "id", "") == "_rows_from"
                )
            )
        ):
            found.append("update(where=Expr): goes through SQL, and can be injected")
        if name == "merge_insert" and place != MERGES:
            found.append("merge_insert: doubles rows unless one writer merges alone")
        if name == "to_list":
            found.append(
                "to_list: holds the event loop for as long as it takes to make objects of all rows"
            )
        if name == "add" and any(
            isinstance(one, ast.List | ast.ListComp | ast.Dict) for one in call.args[:1]
        ):
            found.append("add of a list of dicts: holds the event loop")
        if name == "optimize" and any(_nothing(one) for one in options.values()):
            found.append("cleanup_older_than=0: takes files from those who read them")
        if name in {"tags", "create_tag"}:
            found.append("tags: stop versions from ever being removed")
    if lance and any(
        isinstance(node, ast.Attribute) and node.attr == "tags" for _, node in file.nodes
    ):
        found.append("tags: stop versions from ever being removed")
    return found


def _nothing(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "timedelta"
        and all(
            isinstance(one, ast.Constant) and not one.value
            for one in [*node.args, *(option.value for option in node.keywords)]
        )
    )
