# SPDX-License-Identifier: Apache-2.0
"""The documents name what there is, their links lead somewhere, and no file names a machine."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")])


@pytest.fixture(scope="module")
def make_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_docs", ROOT / "tools" / "make_docs.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["cli.md", "tables.md"])
def test_generated_pages_are_up_to_date(make_docs: ModuleType, page: str) -> None:
    written = (ROOT / "docs" / page).read_text(encoding="utf-8")

    assert written == make_docs.PAGES[page](), f"docs/{page} is old; run make docs"


def test_every_verb_and_option_is_explained(make_docs: ModuleType) -> None:
    silent = []
    for path, command in make_docs.commands():
        if not command.help:
            silent.append(path)
        for parameter in make_docs.parameters(command):
            if not getattr(parameter, "help", None):
                silent.append(f"{path} {make_docs.spelling(parameter)}")

    assert not silent, f"without a help text: {silent}"


def test_every_verb_has_an_example(make_docs: ModuleType) -> None:
    without = [path for path, command in make_docs.commands() if "Example: " not in command.help]

    assert not without


def test_every_verb_and_option_is_in_the_cli_page(make_docs: ModuleType) -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")

    for path, command in make_docs.commands():
        assert f"`{path}" in page
        for parameter in make_docs.parameters(command):
            assert f"`{make_docs.spelling(parameter)}`" in page


def test_every_column_is_in_the_tables_page(make_docs: ModuleType) -> None:
    page = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")

    for name, table in make_docs.TABLES.items():
        section = page.partition(f"## `{name}`\n")[2].partition("\n## ")[0]
        for column in table.columns:
            assert f"| `{column.name}` |" in section, f"{name}.{column.name} is not documented"
            assert column.doc, f"{name}.{column.name} has no doc"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))

    broken = [link for link in links if not (page.parent / link).exists()]

    assert not broken


def test_the_example_of_the_readme_works(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = readme.partition("```python\n")[2].partition("```")[0]

    shown = subprocess.run(
        [sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert shown.returncode == 0, shown.stderr
    assert "forward" in shown.stdout


def files_in_git() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [file for file in files if file.is_file()]


def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    folders = b"|".join([b"home", b"root", b"work"])
    named = re.compile(rb"(?<![\w.$}~/-])/(?:" + folders + rb")(?![\w-])")

    found = [
        f"{file.relative_to(ROOT)}: {match.group().decode()}"
        for file in files_in_git()
        for match in named.finditer(file.read_bytes())
    ]

    assert not found
