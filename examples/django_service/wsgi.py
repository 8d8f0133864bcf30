"""The WSGI entry point. Each worker of the server loads it after the fork and opens the gate here."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

from examples.django_service.tools import tools

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_service.settings")
application = get_wsgi_application()
tools.open()  # closed as the process exits
