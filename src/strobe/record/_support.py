# SPDX-License-Identifier: Apache-2.0
"""What both recorders leave to Python: checks, texts and the decorator. None of it is hot."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from strobe.errors import UsageError

_Function = TypeVar("_Function", bound=Callable[..., Any])

_GENERATOR = 0x20
_COROUTINE = 0x80 | 0x100
_ASYNC_GENERATOR = 0x200


def _as_plain(value: Any) -> Any:
    """Return the Python number of a scalar of NumPy's, which JSON does not know."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    message = f"Object of type {type(value).__name__} is not JSON serializable"
    raise TypeError(message)


# Made once: json.dumps with options makes an encoder for each call.
_encode = json.JSONEncoder(
    separators=(",", ":"), check_circular=False, allow_nan=False, default=_as_plain
).encode


def refuse_name(caller: str, name: object) -> NoReturn:
    """Raise for a name that is no str."""
    message = f"{caller}(name={_shorten(name)}): name must be a str, not {type(name).__name__}"
    raise UsageError(message)


def refuse_value(name: str, value: object) -> NoReturn:
    """Raise for a counter's value that is no number."""
    message = (
        f"counter({_shorten(name)}, value={_shorten(value)}): value must be a number, not "
        f"{type(value).__name__}"
    )
    raise UsageError(message)


def check_attributes(caller: str, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes if they can be kept; raise UsageError naming the one that cannot."""
    for key, value in attributes.items():
        try:
            encode_attributes({"": value})
        except (TypeError, ValueError, RecursionError) as error:
            message = (
                f"{caller}({key}={_shorten(value)}): an attribute is a str, int, float, bool, "
                f"None, or lists and dicts of these ({error}); pass str({key}) instead"
            )
            raise UsageError(message) from None
    return attributes


def _shorten(value: object) -> str:
    """Return a short repr: a value may be large, too deep, or an int too long to print."""
    import reprlib

    try:
        return reprlib.repr(value)
    except (RecursionError, ValueError):
        return f"<{type(value).__name__}>"


def encode_attributes(attributes: dict[str, Any]) -> str:
    """Return attributes as ASCII JSON: any text, lone surrogates too, comes back as it was.

    JSON has no NaN and no infinity: the texts "NaN", "Infinity" and "-Infinity" stand for them.
    """
    try:
        return _encode(attributes)
    except ValueError:
        return _encode(_without_nan(attributes))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {_without_nan(key): _without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(each) for each in value]
    plain = _as_plain(value) if type(value).__module__ == "numpy" else value
    if isinstance(plain, float) and not math.isfinite(plain):
        return "NaN" if math.isnan(plain) else "Infinity" if plain > 0 else "-Infinity"
    return plain


def describe_lane(tid: int, context: int) -> str:
    """Return a lane's definition. Makes no Thread object for a thread that Python did not start."""
    name = ""
    threading = sys.modules.get("threading")
    if threading is None:
        name = "MainThread"
    else:
        thread = threading._active.get(threading.get_ident()) or _starting_thread(threading)
        name = thread.name if thread is not None else f"thread {tid}"
    return json.dumps({"tid": tid, "thread": name, "context": context})


def _starting_thread(threading: Any) -> Any:
    """Return the Thread that is just beginning to run here and not yet listed, None for none."""
    frame: Any = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    begins = frame.f_code is threading.Thread._bootstrap.__code__
    return frame.f_locals["self"] if begins else None


def describe_thread(ident: int) -> str:
    """Return the definition of a lane for another thread, by threading's number for it."""
    threading = sys.modules.get("threading")
    thread = threading._active.get(ident) if threading is not None else None
    tid = getattr(thread, "native_id", None)
    name = thread.name if thread is not None else "MainThread" if threading is None else "thread"
    return json.dumps({"tid": tid, "thread": name, "context": 0})


def qualified_name(code: Any, module_globals: dict[str, Any] | None) -> str | None:
    """Return the qualified name of a code object as Python 3.10 lets us find it, None if unknown.

    Functions know it, code objects do not: all functions that the module's names lead to are looked
    at, and what is defined in them.
    """
    for value in list((module_globals or {}).values()):
        found = _find_qualified(code, value, 0)
        if found is not None:
            return found
    return None


def _find_qualified(code: Any, value: Any, depth: int) -> str | None:
    function = getattr(value, "__func__", value) if type(value) in _WRAPPERS else value
    if type(function) is _FUNCTION:
        return _find_inside(code, function.__code__, function.__qualname__)
    if isinstance(value, type) and depth < 4:
        for member in list(vars(value).values()):
            members = (member.fget, member.fset) if type(member) is property else (member,)
            for each in members:
                found = _find_qualified(code, each, depth + 1)
                if found is not None:
                    return found
    return None


def _find_inside(code: Any, outer: Any, name: str) -> str | None:
    if outer is code:
        return name
    for constant in outer.co_consts:
        if type(constant) is type(code):
            found = _find_inside(code, constant, f"{name}.<locals>.{constant.co_name}")
            if found is not None:
                return found
    return None


_FUNCTION = type(describe_thread)
_WRAPPERS = (staticmethod, classmethod)


def rebuild_span(name: str, attributes: dict[str, Any]) -> Any:
    """Make a span again from its pickle."""
    from strobe.record.recorder import span

    return span(name, **attributes)


def _code_flags(function: Any) -> int:
    import functools

    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    return code.co_flags if code is not None else 0


def decorate(span: Any, function: _Function) -> _Function:
    """Return the function with each of its runs inside the span.

    A coroutine's span lasts from its first step to its result, awaits included; a generator's from
    its first item to its end, the consumer's time included.
    """
    import functools

    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(decorate(span, function.__func__))
    if isinstance(function, type) or not callable(function):
        message = f"@strobe.span({span.name!r}) on {function!r}: it decorates functions and methods"
        raise UsageError(message)
    flags = _code_flags(function)
    if flags & _COROUTINE:
        wrapper = _around_coroutine(span, function)
    elif flags & _ASYNC_GENERATOR:
        wrapper = _around_async_generator(span, function)
    elif flags & _GENERATOR:
        wrapper = _around_generator(span, function)
    else:
        wrapper = _around_call(span, function)
    return functools.wraps(function)(wrapper)  # type: ignore[return-value]


def _around_call(span: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with span:
            return function(*args, **kwargs)

    return wrapper


def _around_coroutine(span: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with span:
            return await function(*args, **kwargs)

    return wrapper


def _around_generator(span: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with span:
            return (yield from function(*args, **kwargs))

    return wrapper


def _around_async_generator(span: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        # What `yield from` does for a generator: async code has to spell it out.
        items = function(*args, **kwargs)
        with span:
            try:
                item = await items.__anext__()
                while True:
                    try:
                        sent = yield item
                    except GeneratorExit:
                        await items.aclose()
                        raise
                    except BaseException as error:
                        item = await items.athrow(error)
                    else:
                        item = await items.asend(sent)
            except StopAsyncIteration:
                return

    return wrapper
