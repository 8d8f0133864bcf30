"""The minimal settings of Django: no database, no templates, no sessions."""

from __future__ import annotations

import os
import secrets

SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY") or secrets.token_hex(32)
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "examples.django_service.urls"
DATA_UPLOAD_MAX_MEMORY_SIZE = 262_144  # Django refuses a longer body before it reads it
USE_TZ = True
