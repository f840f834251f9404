"""A view that sends a message."""

import json

from django.apps import apps
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from gantrymq import GantryError, Message


@csrf_exempt
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    order = json.loads(request.body)
    producer = apps.get_app_config("django_shop").producer
    try:
        result = producer.send(Message("web-orders", request.body, keys=order["id"]))
    except GantryError:
        return JsonResponse({"error": "the order could not be sent"}, status=503)
    return JsonResponse({"message": result.msg_id}, status=202)
