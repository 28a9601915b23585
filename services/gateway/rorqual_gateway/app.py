"""The HTTP surface."""

from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from rorqual_runtime.accounts.keys import Scope
from rorqual_runtime.errors import NotFound, ServingError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from rorqual_gateway import openapi
from rorqual_gateway.console.routes import add_console
from rorqual_gateway.convert import Model
from rorqual_gateway.cors import allow_origins
from rorqual_gateway.dialects import Dialect
from rorqual_gateway.endpoints import dialect_of
from rorqual_gateway.errors import HttpError
from rorqual_gateway.models import model_list, model_object
from rorqual_gateway.request_ids import name_request
from rorqual_gateway.routes import add_api_routes
from rorqual_gateway.service import GatewayService


def make_app(gateway: GatewayService, *, version: str, cors_origins: Sequence[str] = ()) -> FastAPI:
    """All routes of one gateway. cors_origins: whose pages may call them."""
    app = FastAPI(
        title="Rorqual", version=version, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    add_api_routes(app, gateway)
    _add_model_routes(app, gateway)
    _add_operator_routes(app, gateway)
    add_console(app, gateway)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_middleware(HeadAsGet)
    if cors_origins:
        allow_origins(app, cors_origins)
    return app


class HeadAsGet:
    """What can be read can be asked about; the server leaves the body out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Route HEAD as GET."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


def _add_model_routes(app: FastAPI, gateway: GatewayService) -> None:
    @app.get("/v1/models", summary="List the served models", responses=openapi.ERRORS)
    async def list_models(request: Request) -> Response:
        models, refusal = await _models_for(gateway, request)
        if refusal is not None:
            return refusal
        body = model_list(models, _dialect_of(request))
        return JSONResponse(body, headers=_ids_of(request))

    @app.get("/v1/models/{model_id:path}", summary="One model", responses=openapi.ERRORS)
    async def get_model(model_id: str, request: Request) -> Response:
        models, refusal = await _models_for(gateway, request)
        if refusal is not None:
            return refusal
        dialect = _dialect_of(request)
        for model in models:
            if model.id == model_id:
                return JSONResponse(model_object(model, dialect), headers=_ids_of(request))
        missing = NotFound(f"The model '{model_id[:200]}' does not exist", param="model")
        return _error_response(dialect.render_error(missing), request)


def _add_operator_routes(app: FastAPI, gateway: GatewayService) -> None:
    @app.get("/live", summary="The process runs")
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/health", summary="This gateway takes requests")
    async def health() -> Response:
        if gateway.admission.draining:
            return _not_now({"status": "draining"})
        return JSONResponse({"status": "ok"})

    @app.get("/ready", summary="The fleet can serve")
    async def ready() -> Response:
        missing = gateway.missing_services()
        if gateway.admission.draining:
            return _not_now({"status": "draining", "missing": missing})
        if missing:
            return _not_now({"status": "not ready", "missing": missing})
        return JSONResponse({"status": "ready", "missing": []})

    @app.get("/metrics", summary="Prometheus metrics", response_class=Response)
    async def metrics(request: Request) -> Response:
        if gateway.settings.metrics_need_key:
            try:
                await gateway.callers.caller_of(request.headers, Scope.METRICS)
            except ServingError as err:
                return _error_response(_dialect_of(request).render_error(err), request)
        return Response(gateway.metrics.render(), media_type=CONTENT_TYPE_LATEST)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in the shape of all other errors."""
    assert isinstance(error, HTTPException)
    rendered = _dialect_of(request).plain_error(
        error.status_code, f"{request.method} {request.url.path[:200]}: {error.detail}"
    )
    response = _error_response(rendered, request)
    response.headers.update(error.headers or {})
    return response


async def _models_for(
    gateway: GatewayService, request: Request
) -> tuple[list[Model], Response | None]:
    try:
        await gateway.callers.caller_of(request.headers, Scope.INFERENCE)
        return await gateway.models(), None
    except ServingError as err:
        return [], _error_response(_dialect_of(request).render_error(err), request)


def _dialect_of(request: Request) -> Dialect:
    return dialect_of(request.url.path, request.headers)


def _error_response(error: HttpError, request: Request) -> Response:
    headers = _ids_of(request)
    error = _dialect_of(request).with_request_id(error, headers["x-request-id"])
    if error.retry_after_s:
        headers["Retry-After"] = str(error.retry_after_s)
    return Response(
        error.body, status_code=error.status, media_type="application/json", headers=headers
    )


def _ids_of(request: Request) -> dict[str, str]:
    name = name_request(request.headers.get("x-request-id", "")).echoed
    headers = _dialect_of(request).id_headers(name)
    return {key.decode(): value.decode() for key, value in headers}


def _not_now(body: dict[str, object]) -> Response:
    return JSONResponse(body, status_code=503, headers={"Retry-After": "1"})
