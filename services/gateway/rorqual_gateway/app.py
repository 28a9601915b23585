"""The HTTP surface."""

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from rorqual_runtime.errors import NotFound, ServingError
from starlette.exceptions import HTTPException

from rorqual_gateway import openapi
from rorqual_gateway.convert import Model
from rorqual_gateway.errors import HttpError, plain_error, render_error
from rorqual_gateway.exchange import ChatResponse
from rorqual_gateway.request_ids import name_request
from rorqual_gateway.service import GatewayService


def make_app(gateway: GatewayService, *, version: str) -> FastAPI:
    """All routes of one gateway."""
    app = FastAPI(title="Rorqual", version=version, docs_url=None, redoc_url=None)
    _add_chat_route(app, gateway)
    _add_model_routes(app, gateway)
    _add_operator_routes(app, gateway)
    app.add_exception_handler(HTTPException, _on_http_exception)
    return app


def _add_chat_route(app: FastAPI, gateway: GatewayService) -> None:
    @app.post(
        "/v1/chat/completions",
        summary="Create a chat completion",
        openapi_extra={"requestBody": openapi.CHAT_REQUEST_BODY},
        responses=openapi.CHAT_RESPONSES,
        response_class=JSONResponse,
        operation_id="createChatCompletion",
    )
    async def chat() -> Response:
        return ChatResponse(gateway)


def _add_model_routes(app: FastAPI, gateway: GatewayService) -> None:
    @app.get("/v1/models", summary="List the served models", responses=openapi.ERRORS)
    async def list_models(request: Request) -> Response:
        models, refusal = await _models_for(gateway, request)
        if refusal is not None:
            return refusal
        body = {"object": "list", "data": [_model_object(model) for model in models]}
        return JSONResponse(body, headers=_ids_of(request))

    @app.get("/v1/models/{model_id:path}", summary="One model", responses=openapi.ERRORS)
    async def get_model(model_id: str, request: Request) -> Response:
        models, refusal = await _models_for(gateway, request)
        if refusal is not None:
            return refusal
        for model in models:
            if model.id == model_id:
                return JSONResponse(_model_object(model), headers=_ids_of(request))
        missing = NotFound(f"The model '{model_id[:200]}' does not exist", param="model")
        return _error_response(render_error(missing), request)


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
    async def metrics() -> Response:
        return Response(gateway.metrics.render(), media_type=CONTENT_TYPE_LATEST)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in the shape of all other errors."""
    assert isinstance(error, HTTPException)
    rendered = plain_error(
        error.status_code, f"{request.method} {request.url.path[:200]}: {error.detail}"
    )
    response = _error_response(rendered, request)
    response.headers.update(error.headers or {})
    return response


async def _models_for(
    gateway: GatewayService, request: Request
) -> tuple[list[Model], Response | None]:
    try:
        gateway.keys.tenant_of(request.headers.get("authorization", ""))
        return await gateway.models(), None
    except ServingError as err:
        return [], _error_response(render_error(err), request)


def _model_object(model: Model) -> dict[str, object]:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created_unix_s,
        "owned_by": "rorqual",
        "max_model_len": model.max_context_tokens,
    }


def _error_response(error: HttpError, request: Request) -> Response:
    headers = _ids_of(request)
    if error.retry_after_s:
        headers["Retry-After"] = str(error.retry_after_s)
    return Response(
        error.body, status_code=error.status, media_type="application/json", headers=headers
    )


def _ids_of(request: Request) -> dict[str, str]:
    return {"X-Request-Id": name_request(request.headers.get("x-request-id", "")).echoed}


def _not_now(body: dict[str, object]) -> Response:
    return JSONResponse(body, status_code=503, headers={"Retry-After": "1"})
