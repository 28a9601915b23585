"""The routes of the model API: each one hands its request to the same exchange."""

import json

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from rorqual_gateway import openapi
from rorqual_gateway.endpoints import Endpoint
from rorqual_gateway.exchange import ApiResponse
from rorqual_gateway.service import GatewayService


def add_api_routes(app: FastAPI, gateway: GatewayService) -> None:
    """All of them."""
    for path, endpoint in _POSTS.items():
        _add_post(app, gateway, path, endpoint)
    for (method, path), endpoint in _BY_RESOURCE.items():
        _add_by_resource(app, gateway, method, path, endpoint)


_POSTS = {
    "/v1/chat/completions": Endpoint.CHAT_COMPLETIONS,
    "/v1/completions": Endpoint.COMPLETIONS,
    "/v1/responses": Endpoint.RESPONSES,
    "/v1/messages": Endpoint.MESSAGES,
    "/v1/messages/count_tokens": Endpoint.COUNT_TOKENS,
    "/tokenize": Endpoint.TOKENIZE,
    "/detokenize": Endpoint.DETOKENIZE,
}
_BY_RESOURCE = {
    ("GET", "/v1/responses/{response_id}"): Endpoint.RESPONSE_RETRIEVE,
    ("DELETE", "/v1/responses/{response_id}"): Endpoint.RESPONSE_DELETE,
    ("GET", "/v1/responses/{response_id}/input_items"): Endpoint.RESPONSE_INPUT_ITEMS,
}


def _add_post(app: FastAPI, gateway: GatewayService, path: str, endpoint: Endpoint) -> None:
    described = openapi.OPERATIONS[endpoint.name]

    async def handle() -> Response:
        return ApiResponse(gateway, endpoint)

    app.add_api_route(
        path,
        handle,
        methods=["POST"],
        summary=described.summary,
        operation_id=described.operation_id,
        openapi_extra={
            "requestBody": described.request_body,
            "parameters": openapi.COMING_BACK if endpoint.id_prefix else [],
        },
        responses=described.responses,
        response_class=JSONResponse,
    )


def _add_by_resource(
    app: FastAPI, gateway: GatewayService, method: str, path: str, endpoint: Endpoint
) -> None:
    described = openapi.OPERATIONS[endpoint.name]

    async def handle(response_id: str, request: Request) -> Response:
        query = json.dumps(dict(request.query_params)).encode()
        return ApiResponse(gateway, endpoint, resource=response_id, query=query)

    app.add_api_route(
        path,
        handle,
        methods=[method],
        summary=described.summary,
        operation_id=described.operation_id,
        openapi_extra={"parameters": described.query_parameters},
        responses=described.responses,
        response_class=JSONResponse,
    )
