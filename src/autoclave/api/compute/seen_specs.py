"""Who sees the extra specs of flavors where flavors and servers are shown: whoever may list them."""

from autoclave.api.context import Api
from autoclave.objects.base import RequestContext


def sees_extra_specs(api: Api, context: RequestContext) -> bool:
    """Whether *context* may know what flavors ask for beside their sizes."""
    return api.policy.allows(context, "os_compute_api:os-flavor-extra-specs:index")
