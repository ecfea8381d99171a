"""The configuration as text: YAML that loads back, with each key's own docstring above it."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import msgspec

from remora.config import Config
from remora.secrets import Secret

__all__ = ["render_changes", "render_defaults"]

_WIDTH = 110
_IDS = re.compile(r" \((?:(?:[SG][\d.]+)(?:, | to )?)+\)")
_DEFAULTS_HEADER = """\
# remora's configuration: every key, with its default. Keep what you change in a file (--config FILE,
# Runtime.from_file) and leave the rest out. REMORA_SECTION__KEY in the environment goes over the file, as in
# REMORA_BUFFER__TOKEN_LIMIT=8000. A secret is written ${{ secrets.NAME }} and looked up when the file is read.

"""  # noqa: E501
_FORCE_HEADER = """\
# The configuration in force: defaults, the file, and the environment over it. Secrets print as ***.

"""


def render_defaults() -> str:
    """Every key with its default, documented; `Config.from_file` reads it back as ``Config()``."""
    return _DEFAULTS_HEADER + "".join(_comment_section(Config(), ""))


def render_changes(config: Config) -> str:
    """Every key of `config`, the default beside what differs from it; secrets as stars."""
    return _FORCE_HEADER + "".join(_compare_section(config, Config(), ""))


def _comment_section(part: msgspec.Struct, indent: str) -> Iterator[str]:
    for field in msgspec.structs.fields(part):
        value = getattr(part, field.name)
        if isinstance(value, msgspec.Struct):
            yield "\n"
            yield _comment(_docstrings()[type(value).__name__, ""], "")
            yield f"{field.name}:\n"
            yield from _comment_section(value, "  ")
        else:
            yield _comment(_docstrings().get((type(part).__name__, field.name), ""), indent)
            if get_origin(field.type) is Literal:
                yield _comment(f"One of: {', '.join(get_args(field.type))}.", indent)
            elif field.type is Secret:
                yield _comment("May be ${{ secrets.NAME }}.", indent)
            yield _yaml_line(field.name, value, indent)


def _compare_section(part: msgspec.Struct, default: msgspec.Struct, indent: str) -> Iterator[str]:
    for name in part.__struct_fields__:
        value, usual = getattr(part, name), getattr(default, name)
        if isinstance(value, msgspec.Struct):
            yield f"{name}:\n"
            yield from _compare_section(value, usual, "  ")
        elif value == usual:
            yield _yaml_line(name, value, indent)
        else:
            yield (
                _yaml_line(name, value, indent).rstrip("\n")
                + f"  # default: {_yaml_line('', usual, '')[4:]}"
            )


def _comment(text: str, indent: str) -> str:
    prefix = f"{indent}# "
    lines = textwrap.wrap(
        _IDS.sub("", text).strip(), _WIDTH, initial_indent=prefix, subsequent_indent=prefix
    )
    return "".join(f"{line}\n" for line in lines)


def _yaml_line(name: str, value: Any, indent: str) -> str:
    shown = str(value) if isinstance(value, Secret) else value
    return textwrap.indent(msgspec.yaml.encode({name: shown}).decode(), indent)


@functools.cache
def _docstrings() -> Mapping[tuple[str, str], str]:
    """What the source says under each class (its first paragraph, under the name "") and each
    field.
    """
    found: dict[tuple[str, str], str] = {}
    for node in ast.parse(inspect.getsource(sys.modules[Config.__module__])).body:
        if isinstance(node, ast.ClassDef):
            found[node.name, ""] = " ".join(
                (ast.get_docstring(node) or "").partition("\n\n")[0].split()
            )
            for field, below in zip(node.body, node.body[1:], strict=False):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                        value=ast.Constant(value=str(text))
                    ):
                        found[node.name, name] = " ".join(inspect.cleandoc(text).split())
    return found
