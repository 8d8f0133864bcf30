"""Two views: one lists the tools of a user, the other runs a call."""

from __future__ import annotations

import secrets

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.http import require_GET, require_POST

from callgate import ToolCall
from examples.django_service.tools import tools
from examples.small_shop.shop import who


@require_GET
def offered(request: HttpRequest) -> HttpResponse:
    user = who(request)
    if user is None:
        return JsonResponse({"error": "Who asks is not known."}, status=401)
    return JsonResponse(tools.definitions("openai_chat", user=user))


@require_POST
def call(request: HttpRequest, name: str) -> HttpResponse:
    user = who(request)
    if user is None:
        return JsonResponse({"error": "Who asks is not known."}, status=401)
    result = tools.call(
        ToolCall(id=secrets.token_hex(8), name=name, arguments=request.body.decode("utf-8", "replace")), user=user
    )
    status = 200 if result.error is None else result.error.http_status or 500
    return JsonResponse(dict(result.to_status()), status=status)


urlpatterns = [path("tools", offered), path("tools/<str:name>", call)]
