# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's devices by NVML, the library of the driver, called as its header declares it."""

from __future__ import annotations

import ctypes
from typing import Any

from strobe.errors import CaptureError
from strobe.sources.host.rates import Counters
from strobe.sources.host.sampler import Group

LIBRARY = "libnvidia-ml.so.1"

_TX, _RX = 0, 1
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_GPU_TEMPERATURE = 0


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Nvml:
    """The devices of this machine; raises CaptureError where there are none."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError:
            message = f"NVML ({LIBRARY}, of NVIDIA's driver) is not on this machine"
            raise CaptureError(message) from None
        self._call("nvmlInit_v2")
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        self._devices = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
            self._devices.append(device)
        self._refused: dict[str, str] = {}
        if not self._devices:
            self.close()
            message = "NVML knows of no device on this machine"
            raise CaptureError(message)

    @property
    def count(self) -> int:
        """How many devices there are."""
        return len(self._devices)

    @property
    def refused(self) -> dict[str, str]:
        """What a device does not tell: function to reason."""
        return dict(self._refused)

    def names(self) -> list[str]:
        """Return what the devices are called."""
        found = []
        for device in self._devices:
            text = ctypes.create_string_buffer(96)
            self._call("nvmlDeviceGetName", device, text, ctypes.c_uint(len(text)))
            found.append(text.value.decode("utf-8", "replace"))
        return found

    def groups(self, counters: Counters, *, hardware: bool, hbm: bool, pcie: bool) -> list[Group]:
        """Return what is to be looked at."""

        def look(_now_ns: int) -> None:
            for index, device in enumerate(self._devices):
                self._look(counters, f"device {index}", device, hardware=hardware)

        def look_at_pcie(_now_ns: int) -> None:
            for index, device in enumerate(self._devices):
                self._look_at_pcie(counters, f"device {index}", device)

        groups = [Group("NVIDIA devices", 0.2, look)] if hardware or hbm else []
        # NVML itself waits 20 ms for each of these.
        return [*groups, Group("PCIe", 1.0, look_at_pcie)] if pcie else groups

    def close(self) -> None:
        """Have no more to do with it."""
        self._library.nvmlShutdown()

    def _look(self, counters: Counters, name: str, device: Any, *, hardware: bool) -> None:
        use, memory = _Utilization(), _Memory()
        if self._ask("nvmlDeviceGetUtilizationRates", device, ctypes.byref(use)):
            counters.value(f"{name} memory busy %", use.memory)
            if hardware:
                counters.value(f"{name} busy %", use.gpu)
        if self._ask("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory)):
            counters.value(f"{name} memory bytes", memory.used)
        if not hardware:
            return
        number = ctypes.c_uint()
        for function, kind, text, scale in (
            ("nvmlDeviceGetPowerUsage", None, "power W", 1e-3),
            ("nvmlDeviceGetClockInfo", _SM_CLOCK, "clock MHz", 1),
            ("nvmlDeviceGetClockInfo", _MEMORY_CLOCK, "memory clock MHz", 1),
            ("nvmlDeviceGetTemperature", _GPU_TEMPERATURE, "temperature C", 1),
        ):
            kinds = [] if kind is None else [ctypes.c_uint(kind)]
            if self._ask(function, device, *kinds, ctypes.byref(number)):
                counters.value(f"{name} {text}", number.value * scale)

    def _look_at_pcie(self, counters: Counters, name: str, device: Any) -> None:
        number = ctypes.c_uint()
        for kind, text in ((_TX, "sent"), (_RX, "received")):
            if self._ask(
                "nvmlDeviceGetPcieThroughput", device, ctypes.c_uint(kind), ctypes.byref(number)
            ):
                counters.value(f"{name} pcie {text} bytes/s", number.value * 1024)

    def _ask(self, function: str, *arguments: Any) -> bool:
        """Call what a device may not support; it is asked once then."""
        if function in self._refused:
            return False
        try:
            self._call(function, *arguments)
        except CaptureError as error:
            self._refused[function] = str(error)
            return False
        return True

    def _call(self, function: str, *arguments: Any) -> None:
        try:
            code = getattr(self._library, function)(*arguments)
        except AttributeError:
            message = f"{function} is not in this version of NVML"
            raise CaptureError(message) from None
        if code != 0:
            explain = self._library.nvmlErrorString
            explain.restype = ctypes.c_char_p
            message = f"{function}: {explain(code).decode('utf-8', 'replace')}"
            raise CaptureError(message)
