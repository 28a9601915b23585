"""A process around one coroutine: event loop, signals, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import uvloop
from pydantic import ValidationError

from rorqual_runtime.errors import ServingError
from rorqual_runtime.logs import get_logger
from rorqual_runtime.settings import describe_settings_error

CLOSE_S = 5.0
"""For everything to close once the drain is over: less than who stops us waits beyond it."""
EXIT_WATCHDOG_S = 2.0

log = get_logger(__name__)

_is_run = False
"""Whether this process is a service's own."""


@contextlib.contextmanager
def handle_signals(handler: Callable[[signal.Signals], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call the handler, in the main thread; elsewhere this does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handler, number)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def cancelled_by_signals() -> contextlib.AbstractContextManager[None]:
    """SIGTERM and SIGINT cancel the current task."""
    task = asyncio.current_task()
    assert task is not None
    return handle_signals(lambda _number: _cancel(task))


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a service's `main()` on uvloop and exit; a failed start is one line on stderr, code 1."""
    global _is_run
    _is_run = True
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    code = _exit_code(runner, main)
    faulthandler.cancel_dump_traceback_later()
    _exit_later(code)
    runner.close()
    sys.exit(code)


def bound_closing() -> None:
    """A process of `run` ends now within CLOSE_S; if it has to be made to, with exit code 1 and
    what every thread was doing on stderr."""
    if _is_run:
        faulthandler.dump_traceback_later(CLOSE_S, exit=True)


def _exit_code(runner: asyncio.Runner, main: Coroutine[Any, Any, None]) -> int:
    try:
        runner.run(main)
    except ServingError as error:
        return _say(error.message)
    except ValidationError as error:
        return _say(describe_settings_error(error))
    except (asyncio.CancelledError, KeyboardInterrupt):
        return 128 + signal.SIGTERM
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else _say(str(exit_.code or ""))
    except Exception:
        log.exception("the service failed")
        return 1
    return 0


def _say(message: str) -> int:
    print(message, file=sys.stderr, flush=True)  # noqa: T201
    return 1


def end_at_once(reason: str) -> None:
    """End this process with exit code 1, from any thread, as a crash does: nothing is drained or
    answered, others see to what it held."""
    log.critical("the service ends at once", extra={"reason": reason})
    os._exit(1)


def _exit_later(code: int) -> None:
    """A worker thread that never ends must not keep the process."""
    watchdog = threading.Timer(EXIT_WATCHDOG_S, os._exit, (code,))
    watchdog.daemon = True
    watchdog.start()
