"""What a WSGI server loads in each of its workers: after the fork, so the gate may be opened here."""

from __future__ import annotations

import os

from django.core.wsgi import get_wsgi_application

from examples.django_service.tools import tools

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_service.settings")
application = get_wsgi_application()
tools.open()  # closed as the process exits
