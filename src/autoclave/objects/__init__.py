"""Define what travels between services: the request's context and versioned objects.

Importing this package selects oslo.service's threading backend. Otherwise, oslo.versionedobjects would select eventlet
at its import.
"""

from oslo_service import backend
from oslo_service.backend import exceptions as backend_exceptions

from autoclave.exceptions import AutoclaveError


def ensure_threading_backend() -> None:
    """Select the threading backend of oslo.service; later calls do nothing.

    :raises AutoclaveError: other code of this process has selected another backend already.
    """
    try:
        backend.init_backend(backend.BackendType.THREADING)
    except backend_exceptions.BackendAlreadySelected as error:
        selected = backend.get_backend_type()
        raise AutoclaveError(
            f"oslo.service already runs its {selected.value!r} backend in this process, and Autoclave needs "
            "'threading': import autoclave before oslo.messaging, oslo.versionedobjects or anything that uses them"
        ) from error


ensure_threading_backend()
