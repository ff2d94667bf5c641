# SPDX-License-Identifier: Apache-2.0
"""Make a virtual environment, or reuse it while the files that determine it are unchanged.

Prints the environment's path and nothing else on standard output. Needs only the standard library.

    tools/environment.py test                  .venvs/test, for the python that runs this
    tools/environment.py wheel --python 3.12   .venvs/wheel-3.12
    tools/environment.py --find 3.12           where python3.12 is; status 1 if it is nowhere
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venvs"
STAMP = "strobe-environment"  # in the environment: a digest of what determines its libraries
STAMP_STROBE = "strobe-wheel"  # and of what the installed wheel was built from
# pip in a fresh environment may be older than the wheels it is asked for; its notices about that
# are not the reader's concern.
QUIET = ["--quiet", "--disable-pip-version-check"]


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What is installed: requirements/<name>.txt files, and strobe itself."""

    requirements: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()  # installed without the libraries that they ask for
    constraints: tuple[str, ...] = ()
    install: Literal["editable", "wheel"] = "editable"
    build: Literal["auto", "native", "pure"] = "native"
    path: str = ""  # under the project; "" is .venvs/<name>


ENVIRONMENTS = {
    "demo": Environment(build="auto", path=".venv"),
    "test": Environment(requirements=("test",)),
    "check": Environment(requirements=("check",)),
    "bench": Environment(requirements=("bench",), install="wheel"),
    "torch": Environment(requirements=("test", "torch", "trainers"), install="wheel"),
    "jax": Environment(requirements=("test", "jax"), install="wheel"),
    "paddle": Environment(requirements=("test", "paddle"), install="wheel"),
    "mindspore": Environment(requirements=("test", "mindspore"), install="wheel"),
    "ascend": Environment(requirements=("ascend",), install="wheel"),
    "bench-torch": Environment(requirements=("torch",), install="wheel"),
    "bench-paddle": Environment(requirements=("paddle",), install="wheel"),
    "bench-jax": Environment(requirements=("jax",), install="wheel"),
    "bench-mindspore": Environment(requirements=("mindspore",), install="wheel"),
    "wheel": Environment(requirements=("test",), install="wheel"),
    "consumers": Environment(requirements=("test",), bare=("consumers",), install="wheel"),
    "pure": Environment(requirements=("test",), install="wheel", build="pure"),
    "lowest": Environment(requirements=("test",), constraints=("lowest",), install="wheel"),
}


def main() -> None:
    arguments = parse()
    if arguments.find:
        found = find_python(arguments.find)
        sys.exit(f"python{arguments.find} is not installed") if found is None else print(found)
        return
    name = arguments.name
    python, suffix = Path(sys.executable), ""
    if arguments.python:
        found = find_python(arguments.python)
        if found is None:
            sys.exit(f"--python {arguments.python}: no such python on PATH or under pyenv")
        python, suffix = found, f"-{arguments.python}"
    with lock(f"{name}{suffix}"):
        print(prepare(name, ENVIRONMENTS[name], python=python, suffix=suffix))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", nargs="?", choices=sorted(ENVIRONMENTS))
    parser.add_argument("--python", metavar="X.Y", help="not the python that runs this script")
    parser.add_argument("--find", metavar="X.Y", help="print where that python is, and stop")
    arguments = parser.parse_args()
    if not arguments.name and not arguments.find:
        parser.error("name an environment: " + ", ".join(sorted(ENVIRONMENTS)))
    return arguments


@contextlib.contextmanager
def lock(what: str) -> Iterator[None]:
    """One process at a time: in an environment, or with "src", where all builds leave files."""
    HOME.mkdir(exist_ok=True)
    with (HOME / f"{what}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def prepare(name: str, environment: Environment, *, python: Path, suffix: str) -> Path:
    path = ROOT / environment.path if environment.path else HOME / f"{name}{suffix}"
    stamp = path / STAMP
    wanted = libraries(environment, python)
    if not stamp.exists() or stamp.read_text() != wanted:
        create(path, python=python)
        install(path, environment, python=python)
        stamp.write_text(wanted)
    elif not strobe_is_current(path, environment):
        install(path, environment, python=python, only_strobe=True)
    return path


def create(path: Path, *, python: Path) -> None:
    if path.exists():
        if not (path / STAMP).exists():
            sys.exit(f"{path} exists and was not made by {Path(__file__).name}; move it away first")
        shutil.rmtree(path)
    say(f"making {path.relative_to(ROOT)}")
    path.mkdir(parents=True)
    (path / STAMP).write_text("incomplete")
    # Under .venvs nobody calls pip: without it, an environment is made in no time.
    without = ["--without-pip"] if HOME in path.parents else []
    run([python, "-m", "venv", *without, path])


def install(
    path: Path, environment: Environment, *, python: Path, only_strobe: bool = False
) -> None:
    say(f"installing strobe into {path.relative_to(ROOT)}")
    more: list[str | Path] = ["--no-deps", "--force-reinstall"]
    if not only_strobe:
        more = []
        for name in environment.requirements:
            more += ["-r", ROOT / "requirements" / f"{name}.txt"]
        for name in environment.bare:
            file = ROOT / "requirements" / f"{name}.txt"
            pip("install", ["--no-deps", "-r", file], python=python, into=path)
    for file in requirement_files(environment.constraints):
        more += ["-c", file]
    if environment.install == "wheel":
        pip("install", [wheel(environment.build, python), *more], python=python, into=path)
        (path / STAMP_STROBE).write_text(packaged())
        return
    with lock("src"):
        pip("install", ["-e", ROOT, *more], python=python, into=path, build=environment.build)
        note_editable(path)


def note_editable(path: Path) -> None:
    (path / STAMP_STROBE).write_text(digest(below("build_backend")))
    suffix = extension_suffix(path)
    (HOME / f"built{suffix}").write_text(built_in_place(suffix))
    if not extensions(suffix):
        say("the C extensions could not be built; the Python recorder will be used")


def wheel(build: str, python: Path) -> Path:
    """Return the wheel of strobe for a python, built once for all environments of this python."""
    folder = HOME / f"wheels-{build}-{identity(python)}"
    stamp = folder / STAMP_STROBE
    with lock("src"):
        if not stamp.exists() or stamp.read_text() != packaged():
            shutil.rmtree(folder, ignore_errors=True)
            pip("wheel", ["--no-deps", "--wheel-dir", folder, ROOT], python=python, build=build)
            stamp.write_text(packaged())
    return next(folder.glob("*.whl"))


def installer(python: Path) -> Path:
    """Return a python with a pip that can install into other environments of this python."""
    path = HOME / f"pip-{identity(python)}"
    with lock(path.name):
        if not (path / STAMP).exists():
            shutil.rmtree(path, ignore_errors=True)
            run([python, "-m", "venv", path])
            able = "pip>=22.3"  # knows --python
            run([path / "bin/python", "-m", "pip", "install", *QUIET, able])
            (path / STAMP).touch()
    return path / "bin/python"


def identity(python: Path) -> str:
    version = subprocess.check_output([python, "-VV"])
    return hashlib.sha256(version).hexdigest()[:8]


def libraries(environment: Environment, python: Path) -> str:
    """A digest of what decides which python and which libraries are in the environment."""
    version = subprocess.check_output([python, "-VV"], text=True)
    names = environment.requirements + environment.bare + environment.constraints
    files = requirement_files(names)
    return digest(files, text=f"{environment} {python} {version}")


def requirement_files(names: tuple[str, ...]) -> list[Path]:
    files = [ROOT / "requirements" / f"{name}.txt" for name in names]
    for file in files:  # grows while it is read: a file may name others
        lines = file.read_text().splitlines()
        files += [file.parent / line[3:].strip() for line in lines if line.startswith("-r ")]
    return files


def strobe_is_current(path: Path, environment: Environment) -> bool:
    if environment.install == "wheel":
        stamp = path / STAMP_STROBE
        return stamp.exists() and stamp.read_text() == packaged()
    stamp = path / STAMP_STROBE
    if not stamp.exists() or stamp.read_text() != digest(below("build_backend")):
        return False  # strobe.pth is this environment's own
    # The extensions of editable installs lie in src/, shared by all environments of one python,
    # and may have been built by another one from other sources.
    suffix = extension_suffix(path)
    record = HOME / f"built{suffix}"
    return (
        bool(extensions(suffix))
        and record.exists()
        and record.read_text() == built_in_place(suffix)
    )


def packaged() -> str:
    return digest(below("src", "native", "build_backend"))


def built_in_place(suffix: str) -> str:
    """The sources of the extensions, and which files came of them."""
    built = [f"{file.relative_to(ROOT)} {file.stat().st_mtime_ns}" for file in extensions(suffix)]
    return "\n".join([digest(below("native", "build_backend")), *built])


def extensions(suffix: str) -> list[Path]:
    return sorted((ROOT / "src").rglob(f"*{suffix}"))


def extension_suffix(path: Path) -> str:
    ask = "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"
    return subprocess.check_output([path / "bin/python", "-c", ask], text=True).strip()


def below(*folders: str) -> list[Path]:
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    made = (".pyc", ".so", ".egg-info")
    return [file for file in files if not {file.suffix, file.parent.suffix} & set(made)]


def digest(files: list[Path], *, text: str = "") -> str:
    total = hashlib.sha256(text.encode())
    for file in sorted({ROOT / "pyproject.toml", ROOT / "setup.py", *files}):
        total.update(f"\n{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return total.hexdigest()


def find_python(version: str) -> Path | None:
    candidates = [Path(folder, f"python{version}") for folder in os.get_exec_path()]
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    candidates += sorted(pyenv.glob(f"{version}.*/bin/python{version}"), reverse=True)
    return next((path for path in candidates if path.exists() and runs(path, version)), None)


def runs(path: Path, version: str) -> bool:
    # pyenv puts a python3.12 on PATH that only says that it is not chosen.
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    answer = subprocess.run([path, "-c", ask], capture_output=True, text=True, check=False)
    return answer.stdout.strip() == version


def pip(
    verb: Literal["install", "wheel"],
    what: list[str | Path],
    *,
    python: Path,
    into: Path | None = None,
    build: str = "auto",
) -> None:
    command: list[str | Path] = [installer(python), "-m", "pip"]
    if into is not None:
        command += ["--python", into / "bin/python"]
    command += [verb, *QUIET]
    # Most of it is never imported, and tests can wait for the rest; benchmarks cannot.
    if verb == "install" and into is not None and not into.name.startswith("bench"):
        command.append("--no-compile")
    run([*command, *what], STROBE_BUILD=build)


def run(command: list[str | Path], **variables: str) -> None:
    done = subprocess.run(command, env=os.environ | variables, stdout=sys.stderr, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: failed with status {done.returncode}")


def say(text: str) -> None:
    print(f"environment: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
