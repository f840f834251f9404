import os

SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "only-for-development")
ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
INSTALLED_APPS = ["django_shop"]
ROOT_URLCONF = "django_shop.urls"
ROCKETMQ_NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
