"""Routes of the console. It only looks: nothing here changes the fleet."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from rorqual_runtime.accounts.keys import Scope
from rorqual_runtime.errors import NotFound, ServingError
from rorqual_runtime.span_files import find_trace, newest_requests

from rorqual_gateway.console.pages import load_pages
from rorqual_gateway.convert import shown
from rorqual_gateway.dialects import OPENAI
from rorqual_gateway.service import GatewayService

NUM_REQUESTS = 100
LIST_TAIL_BYTES = 512 << 10
"""Of each trace file, for the list: it is asked for every few seconds, and a request is a line."""
TAIL_BYTES = 8 << 20
MAX_TRACE_ID_CHARS = 128
_SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_console(app: FastAPI, gateway: GatewayService) -> None:
    """The page is for everybody; what it shows of the fleet needs the scope `console`."""
    pages = load_pages()

    @app.get("/console", include_in_schema=False)
    async def console() -> Response:
        return RedirectResponse("/console/")

    @app.get("/console/{path:path}", include_in_schema=False)
    async def page(path: str, request: Request) -> Response:
        found = pages.get(path or "index.html")
        if found is None:
            return Response("not here", status_code=404, media_type="text/plain")
        headers = {**_SECURITY, "ETag": found.etag}
        if request.headers.get("if-none-match") == found.etag:
            return Response(status_code=304, headers=headers)
        return Response(found.body, media_type=found.media_type, headers=headers)

    # behind the page's own paths, so that no file can stand in for data
    @app.get("/console-api/fleet", include_in_schema=False)
    async def fleet(request: Request) -> Response:
        return await _refusal(gateway, request) or _json(_fleet(gateway))

    @app.get("/console-api/requests", include_in_schema=False)
    async def requests(request: Request) -> Response:
        refusal = await _refusal(gateway, request)
        return refusal or _json({"requests": await asyncio.to_thread(_requests, gateway)})

    @app.get("/console-api/traces/{trace_id}", include_in_schema=False)
    async def trace(trace_id: str, request: Request) -> Response:
        refusal = await _refusal(gateway, request)
        if refusal is not None:
            return refusal
        spans = await asyncio.to_thread(_trace, gateway, trace_id)
        if not spans:
            return _failed(NotFound("no trace of this id is kept here", param="trace_id"))
        return _json({"spans": spans})


async def _refusal(gateway: GatewayService, request: Request) -> Response | None:
    try:
        await gateway.callers.caller_of(request.headers, Scope.CONSOLE)
    except ServingError as error:
        return _failed(error)
    return None


def _failed(error: ServingError) -> Response:
    rendered = OPENAI.render_error(error)
    return Response(rendered.body, status_code=rendered.status, media_type="application/json")


def _json(body: dict[str, Any]) -> Response:
    return JSONResponse(body, headers={"Cache-Control": "no-store"})


def _fleet(gateway: GatewayService) -> dict[str, Any]:
    return {
        "gateway": gateway.instance_id,
        "now_unix_s": gateway.clock.now_unix_s(),
        "draining": gateway.admission.draining,
        "missing": gateway.missing_services(),
        "instances": [
            {"age_s": age_s, **shown(report)} for age_s, report in gateway.fleet.instances()
        ],
        "decisions": [shown(decision) for decision in reversed(gateway.decisions)],
    }


def _requests(gateway: GatewayService) -> list[dict[str, Any]]:
    found = newest_requests(gateway.traces_dir, limit=NUM_REQUESTS, tail_bytes=LIST_TAIL_BYTES)
    return [asdict(request) for request in found]


def _trace(gateway: GatewayService, trace_id: str) -> list[dict[str, Any]]:
    if not trace_id.isascii() or len(trace_id) > MAX_TRACE_ID_CHARS:
        return []
    spans = find_trace(gateway.traces_dir, trace_id, tail_bytes=TAIL_BYTES)
    return [asdict(span) for span in sorted(spans, key=lambda span: span.start_unix_ns)]
