# SPDX-License-Identifier: Apache-2.0
"""mindspore.profiler.profile: records rounds, each into a directory of its own."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from strobe.errors import StateError
from strobe.mindspore._handler import TraceHandler
from strobe.mindspore._recorder import Recorder
from strobe.mindspore._settings import PROFILE, Settings, settle
from strobe.record.messages import show
from strobe.session import mindspore_offline, mindspore_tree
from strobe.session.profiler import read_json


class Lifecycle:
    """What `profile` and `Profiler` have in common."""

    def __init__(
        self, settings: Settings, kind: mindspore_tree.Kind, *, caller: str, analyses: bool
    ) -> None:
        self._caller = caller
        self._settings = settings
        self._handler = settings.values["on_trace_ready"]
        self._is_handled = False
        """Whether on_trace_ready is being called."""
        self._recorder = Recorder(settings, kind=kind, analyses=analyses, on_round=self._end_round)
        if settings.values["start_profile"]:
            self._recorder.start()

    def start(self) -> None:
        """Start recording.

        Raises RuntimeError while it records, and unless it was made with start_profile=False.
        """
        if self._recorder.is_started:
            message = f"{self._caller}.start() while recording; call stop() first"
            raise StateError(message)
        if self._settings.values["start_profile"]:
            message = (
                f"{self._caller}.start(): it was started when it was made; make it with "
                "start_profile=False to start it yourself, and again after stop()"
            )
            raise StateError(message)
        self._recorder.start()

    def stop(self) -> None:
        """Stop recording; raises RuntimeError when it has not been started."""
        self._recorder.stop()
        self._explain()

    def step(self) -> None:
        """End a step; raises RuntimeError without a schedule, and when it has not been started."""
        if self._settings.values["schedule"] is None:
            message = (
                f"{self._caller}.step() without a schedule; give {self._caller}(schedule="
                "schedule(wait=..., active=...)), or leave step() out to record all"
            )
            raise StateError(message)
        self._recorder.step()

    def add_metadata(self, key: str, value: str) -> None:
        """Keep a fact in profiler_metadata.json; raises TypeError if one is no str."""
        _require_text("add_metadata", key=key, value=value)
        self._recorder.add(key, value)

    def add_metadata_json(self, key: str, value: str) -> None:
        """Keep a fact that is JSON text; raises TypeError or ValueError if it is not."""
        _require_text("add_metadata_json", key=key, value=value)
        self._recorder.add(key, read_json(key, value))

    def __enter__(self) -> Any:
        """Start, unless it was started when it was made."""
        if not self._recorder.is_started:
            self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop, unless the block did."""
        if self._recorder.is_started:
            self._recorder.__exit__(kind, error, trace)
            self._explain()

    def _end_round(self) -> None:
        if self._handler is None or isinstance(self._handler, TraceHandler):
            return
        self._is_handled = True
        try:
            self._handler(self)
        finally:
            self._is_handled = False

    def _explain(self) -> None:
        problem = self._recorder.explain_schedule()
        if problem:
            show(problem)

    def _write_into(self, handler: TraceHandler) -> None:
        recording = self._recorder.paths[-1]
        declaration = mindspore_tree.Declaration(kind="profile", parameters={})
        found = mindspore_tree.place_profile(
            handler.folder or self._recorder.folder,
            handler.worker,
            declaration,
            self._recorder.place,
        )
        mindspore_offline.start_analysis([recording], {"root": str(found.path.parent.parent)})


def _require_text(caller: str, **texts: object) -> None:
    for name, text in texts.items():
        if not isinstance(text, str):
            message = f"{caller}({name}={text!r}): {name} must be a str"
            raise TypeError(message)


class Profile(Lifecycle):
    """Records a program with MindSpore, PyTorch, JAX, Paddle or none of them.

    Each round, from start() to stop() or as the schedule says, becomes
    ./data/<worker>_<time>_ascend_ms, or a folder in that of a tensorboard_trace_handler. The files
    in it are written outside the program, at the latest when it ends.

    Arguments: those of mindspore.profiler.profile. What is named and cannot be had here is said
    once, and listed in profiler_info_<rank>.json. Raises TypeError or ValueError for what cannot
    be right, such as with_stack without CPU among the activities.
    """

    def __init__(
        self,
        activities: list[Any] | None = None,
        with_stack: bool = False,
        profile_memory: bool = False,
        data_process: bool = False,
        parallel_strategy: bool = False,
        start_profile: bool = True,
        hbm_ddr: bool = False,
        pcie: bool = False,
        sync_enable: bool = True,
        schedule: Callable[[int], Any] | None = None,
        on_trace_ready: Callable[..., Any] | None = None,
        experimental_config: Any = None,
        record_shapes: bool = False,
        **unknown: Any,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in PROFILE}
        named = {name: value for name, value in given.items() if value is not PROFILE[name]}
        settings = settle("profile", {**named, **unknown}, PROFILE)
        super().__init__(settings, "profile", caller="profile", analyses=True)

    def analyse(self, *, async_mode: bool = False) -> None:
        """For an on_trace_ready that reads the files: have those of the round that ended made now.

        Nobody else needs it, and with `async_mode` it does nothing. Raises RuntimeError where no
        round has ended.
        """
        if not self._recorder.paths:
            message = "profile.analyse() before a round has ended; call stop() first"
            raise StateError(message)
        if not async_mode:
            mindspore_tree.complete(self._recorder.paths[-1])
