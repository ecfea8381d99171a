"""How Sphinx builds the site: `python3 tasks.py site`.

The source directory is the repository, because the README and the pages of docs/ link to one
another, and to examples. A link to a file that is no page becomes a download.
"""

from __future__ import annotations

import builtins
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.builders.text import TextBuilder
from sphinx.environment import BuildEnvironment

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

# A class names the module that defines it, and not the public one: autodoc reads the descriptions
# of attributes there.
_faces = types.ModuleType("remora.faces")
_faces.publish = lambda *_: None  # type: ignore[attr-defined]
sys.modules["remora.faces"] = _faces

import remora  # noqa: E402
from tools.site_texts import Entry, first_sentence, text_of, write_texts  # noqa: E402

project = "remora"
version = release = remora.__version__
copyright = "the authors of remora"  # noqa: A001
root_doc = "docs/index"
include_patterns = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
include_patterns += ["docs/**", "examples/README.md"]
exclude_patterns = [".*", "build", "dist", "tests", "benchmarks", "remora", "tools", "node_modules"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # a README may begin with any level

default_role = "py:obj"  # a single backtick names code, and links to it where it is described
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True  # attributes that autodoc lists are not listed twice

# not installed for developers
autodoc_mock_imports = [
    "agent_framework",
    "claude_agent_sdk",
    "google.adk",
    "llama_index",
    "ray",
    "strands",
]
# a union whose discriminator Sphinx would take for a name of ours
autodoc_type_aliases = {"ModelMessage": "pydantic_ai.messages.ModelMessage"}
autodoc_default_options = {"undoc-members": True, "exclude-members": "__new__, kinds"}

html_theme = "furo"
html_title = f"remora {release}"
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # it would be fetched, which a browser refuses for files
html_additional_pages = {"index": "to_documents.html"}
html_use_index = False  # the search finds every name
html_domain_indices = False
html_search_scorer = str(ROOT / "docs" / "_templates" / "search_order.js")
html_theme_options = {"top_of_page_buttons": ["view"]}  # the page's text
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("accessible.js", {"defer": "defer"})]
templates_path = ["_templates"]
pygments_style = "default"

_PAGE = re.compile(r"\]\(([^)#:]+\.(?:md|rst))\)")


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("source-read", add_navigation)
    app.connect("doctree-read", point_to_public_names)
    app.connect("html-page-context", link_text)
    app.connect("build-finished", add_texts)


def add_navigation(_: Sphinx, page: str, source: list[str]) -> None:
    """The index is the navigation: a part for each heading, with the pages that it links."""
    if page == root_doc:
        for part in source[0].split("\n## ")[1:]:
            heading, _, text = part.partition("\n")
            pages = "\n".join(_PAGE.findall(text))
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{pages}\n```\n"


def point_to_public_names(_: Sphinx, doctree: nodes.document) -> None:
    """Types in signatures lead to the names that users import."""
    for link in list(doctree.findall(addnodes.pending_xref)):
        target = link.get("reftarget", "")
        if target in vars(builtins):
            link.replace_self(link.children)  # not to an attribute of that name
        elif link.get("py:module") != "remora.blocking":
            link["reftarget"] = _PUBLIC.get(target, target)


def link_text(app: Sphinx, page: str, _: str, context: dict[str, Any], doctree: object) -> None:
    """A page that is made from a document links its text."""
    if doctree is not None:
        context["text"] = context["pathto"](text_of(source_of(app.env, page)), 1)


def add_texts(app: Sphinx, failure: Exception | None) -> None:
    """Write the texts of all pages, in the order of the navigation."""
    if failure is None and app.builder.name == "html":
        parts = {"The documents": [entry_of(app.env, root_doc)]}
        for part in app.env.tocs[root_doc].findall(addnodes.toctree):
            pages = [page for name in part["includefiles"] for page in with_parts(app.env, name)]
            parts[part["caption"]] = [entry_of(app.env, page) for page in dict.fromkeys(pages)]
            for page in pages:
                if source_of(app.env, page).endswith(".rst"):
                    write_plain_text(app, page)
        write_texts(Path(app.outdir), release, parts)


def with_parts(env: BuildEnvironment, page: str) -> Iterator[str]:
    """A page, and those that its own list of pages names."""
    yield page
    for part in env.toctree_includes.get(page, ()):
        yield from with_parts(env, part)


def source_of(env: BuildEnvironment, page: str) -> str:
    """The path of a page's source from the root."""
    return Path(env.doc2path(page, base=False)).as_posix()


def entry_of(env: BuildEnvironment, page: str) -> Entry:
    """A page's title, and its first sentence, or what it describes of the API."""
    doctree = env.get_doctree(page)
    names = [
        name["fullname"] for name in doctree.findall(addnodes.desc_signature) if name["class"] == ""
    ]
    if names:
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        line = f"{', '.join(names[:8])}{more}"
    else:
        paragraphs = (found.astext() for found in doctree.findall(nodes.paragraph))
        line = first_sentence(next(filter(None, paragraphs), ""))
    return Entry(source_of(env, page), env.titles[page].astext(), line)


def write_plain_text(app: Sphinx, page: str) -> None:
    """Write the text of a page of the API, where its HTML is."""
    writer = TextBuilder(app, app.env)
    writer.init()
    doctree = app.env.get_and_resolve_doctree(page, writer, tags=app.tags)
    writer.write_doc(page, doctree)


_PUBLIC = {
    known: f"remora.{name}"
    for name in remora.__all__
    for thing in [getattr(remora, name)]
    if isinstance(thing, type)
    for known in (name, f"{thing.__module__}.{name}")
}
