"""The configuration as text: YAML that loads back, each key under its own docstring."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator, Mapping
from typing import Literal, get_args, get_origin

import msgspec

import remora.config
from remora.config import Config, Secret

_WIDTH = 110
_DEFAULTS_HEADER = """\
# remora's configuration: every key, with its default. Keep the keys that you change in a file
# (--config FILE, Runtime.from_file) and leave the others out. REMORA_SECTION__KEY in the
# environment takes precedence over the file, as in REMORA_BUFFER__TOKEN_LIMIT=8000. A secret is
# written ${{ secrets.NAME }} and looked up when the file is read.

"""
_FORCE_HEADER = """\
# The configuration in force: the defaults, then the file, then the environment. Secrets print as
# ***.

"""


def render_defaults() -> str:
    """Every key with its default, documented; `Config.from_file` reads it back as ``Config()``."""
    return _DEFAULTS_HEADER + "".join(_comment_section(Config(), ""))


def render_changes(config: Config) -> str:
    """Every key of `config`, with the default of those that differ; secrets as stars."""
    return _FORCE_HEADER + "".join(_compare_section(config, Config(), ""))


def _comment_section(part: msgspec.Struct, indent: str) -> Iterator[str]:
    for field in msgspec.structs.fields(part):
        value = getattr(part, field.name)
        if isinstance(value, msgspec.Struct):
            yield "" if indent else "\n"
            yield _comment(_docstrings()[type(value).__name__, ""], indent)
            yield f"{indent}{field.name}:\n"
            yield from _comment_section(value, f"{indent}  ")
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
            yield f"{indent}{name}:\n"
            yield from _compare_section(value, usual, f"{indent}  ")
        elif value == usual:
            yield _yaml_line(name, value, indent)
        else:
            yield (
                _yaml_line(name, value, indent).rstrip("\n")
                + f"  # default: {_yaml_line('', usual, '')[4:]}"
            )


def _comment(text: str, indent: str) -> str:
    prefix = f"{indent}# "
    lines = textwrap.wrap(text, _WIDTH, initial_indent=prefix, subsequent_indent=prefix)
    return "".join(f"{line}\n" for line in lines)


def _yaml_line(name: str, value: object, indent: str) -> str:
    shown = str(value) if isinstance(value, Secret) else value
    return textwrap.indent(msgspec.yaml.encode({name: shown}).decode(), indent)


@functools.cache
def _docstrings() -> Mapping[tuple[str, str], str]:
    """The docstrings of each section (its first paragraph, under the name "") and of each field."""
    found: dict[tuple[str, str], str] = {}
    for module in pkgutil.iter_modules(remora.config.__path__, "remora.config."):
        for node in ast.parse(inspect.getsource(importlib.import_module(module.name))).body:
            if isinstance(node, ast.ClassDef):
                found[node.name, ""] = _first_paragraph(ast.get_docstring(node) or "")
                for field, below in zip(node.body, node.body[1:], strict=False):
                    match field, below:
                        case (
                            ast.AnnAssign(target=ast.Name(id=name)),
                            ast.Expr(value=ast.Constant(value=str(text))),
                        ):
                            found[node.name, name] = _first_paragraph(inspect.cleandoc(text))
    return found


def _first_paragraph(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())
