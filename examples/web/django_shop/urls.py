from django.urls import path

from django_shop.views import place_order

urlpatterns = [path("orders", place_order)]
