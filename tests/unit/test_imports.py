"""What `import remora` loads, and what it leaves to whoever needs it; each in an interpreter of its
own.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import remora
from remora import Receipt, public

pytestmark = pytest.mark.cold
LEFT_OUT = (
    "aiosqlite",
    "asyncio",
    "attr",
    "difflib",
    "filelock",
    "httpx2",
    "importlib.metadata",
    "importlib.resources",
    "lancedb",
    "logging",
    "numpy",
    "openai",
    "pyarrow",
    "pygments",
    "requests",
    "rich",
    "sentencex",
    "sqlite3",
    "Stemmer",
    "structlog",
    "tiktoken",
    "trio",
    "wordllama",
    "yaml",
    "remora.adapters",
    "remora.cli",
    "remora.testing",
)


def ran(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize(
    "statement",
    [
        "import remora",
        "from remora import Runtime",
        "from remora import *; Runtime.in_memory(config=Config()).session('alice', 'chat')",
        "import remora.errors, remora.blocks, remora.config, remora.transfer",
    ],
)
def test_import_is_light(statement: str) -> None:
    """S4.01: a program that has remora in it starts as fast as one that has not; what opens a
    runtime loads the rest.
    """
    # what `site` loads is not ours: an editable install or a coverage tool has a say there
    program = (
        f"import sys; before = set(sys.modules)\n{statement}\nloaded = set(sys.modules) - before\n"
        f"print(sorted(loaded & set({LEFT_OUT!r})))"
    )
    assert ran(program) == "[]"


def test_what_is_public_is_there() -> None:
    """All of `__all__` is there without another import, to be listed, starred and pickled."""
    program = (
        "import remora\nfrom remora import *\n"
        "print([one for one in remora.__all__ if one not in dir(remora) or one not in globals()])"
    )
    assert ran(program) == "[]"
    for struct in (
        remora.Message(role="user", content="hi"),
        remora.BufferPolicy(),
        Receipt((1,), ("id",)),
    ):
        assert isinstance(struct, msgspec.Struct)
        assert pickle.loads(pickle.dumps(struct)) == struct


def test_a_line_is_written_without_a_runtime() -> None:
    """What loads structlog first is the first line: it is written through the standard library, as
    any other.
    """
    program = (
        "import logging, sys; logging.basicConfig(stream=sys.stdout, format='%(name)s "
        "%(levelname)s %(message)s')\n"
        "from remora.logging import get_logger\n"
        "logger = get_logger('remora.test'); assert 'structlog' not in sys.modules\n"
        "logger.warning('odd', user='alice'); logger.info('quiet')\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: logger.exception('failed')"
    )
    lines = ran(program).splitlines()
    assert lines[0] == "remora.test WARNING event=odd user=alice"
    assert lines[1].startswith("remora.test ERROR event=failed")
    assert "ZeroDivisionError" in lines[1]
    assert not any("quiet" in line for line in lines)


def test_lancedb_warns_nobody_past_the_applications_logging(tmp_path: Path) -> None:
    """On a table of many equal vectors, the clusters of an index are empty."""
    program = (
        "import asyncio, sys\n"
        "from remora.storage.lance.loading import import_lancedb\n"
        "lancedb = import_lancedb()\n"
        "import pyarrow as pa\n"
        "from lancedb.index import IvfSq\n"
        "async def make():\n"
        "    database = await lancedb.connect_async(sys.argv[1])\n"
        "    vectors = [[float(n % 9 == place) for place in range(16)] for n in range(2_000)]\n"
        "    column = pa.array(vectors, pa.list_(pa.float32(), 16))\n"
        "    table = await database.create_table('t', pa.table({'vector': column}))\n"
        "    index = IvfSq(distance_type='cosine', num_partitions=40)\n"
        "    await table.create_index('vector', config=index)\n"
        "asyncio.run(make())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={name: value for name, value in os.environ.items() if name != "LANCEDB_LOG"},
    )
    assert ended.stderr == ""


def test_the_client_of_a_cloud_that_nobody_uses_is_not_made() -> None:
    """LanceDB imports it, which takes as long as all the rest; whoever asks for it has it."""
    client = "lance_namespace_urllib3_client"
    found = ran(
        "import sys\n"
        "from remora.storage.lance.loading import import_lancedb\n"
        "lancedb = import_lancedb()\n"
        f"print('{client}' in sys.modules, '{client}.api' in sys.modules)\n"
        f"from {client} import TableApi\n"
        f"import {client}\n"
        f"print(TableApi.__module__, {client}.TableApi is TableApi, {client}.__version__ != '')\n"
    )
    assert found == f"True False\n{client}.api.table_api True True"


def test_public_names_agree() -> None:
    """Type checkers read the list of `remora.public`, and `remora` may not load it for its own."""
    apart = {"Client", "errors", "http_status"}
    assert sorted(remora.__all__) == sorted({*public.__all__, *apart})
