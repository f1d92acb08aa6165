"""What travels between services: the request's context and versioned objects.

Importing this package selects oslo.service's threading backend, because oslo.versionedobjects would
otherwise settle for eventlet as soon as it is imported.
"""

from autoclave.objects.backend import ensure_threading_backend

ensure_threading_backend()
