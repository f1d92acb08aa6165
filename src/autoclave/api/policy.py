"""Define the policy rules, and enforce them. Rule names are Cyborg's, Nova's and Glance's; ``autoclave:*`` are ours.

``/etc/autoclave/policy.yaml`` (``[oslo_policy] policy_file``) changes them.
"""

import threading
from typing import Any

from oslo_log import log as logging
from oslo_policy import opts, policy
from requests import RequestException

from autoclave.api.policy_files import PolicyFiles
from autoclave.exceptions import Forbidden, InvalidConfiguration, PolicyUnavailable
from autoclave.objects.base import RequestContext

LOG = logging.getLogger(__name__)

ADMIN = "rule:admin_api"
MANAGER_OR_ADMIN = "rule:project_manager_or_admin"
READER_OR_ADMIN = "rule:project_reader_or_admin"
MEMBER_OR_ADMIN = "rule:project_member_or_admin"
MEMBER_OR_SERVICE = "rule:project_member_or_service"

BASE_RULES = (
    policy.RuleDefault("admin_api", "role:admin", "Administrators."),
    policy.RuleDefault("service_api", "role:service", "Services, such as Nova."),
    policy.RuleDefault("project_manager_api", "role:manager and project_id:%(project_id)s", "Managers of the project."),
    policy.RuleDefault("project_member_api", "role:member and project_id:%(project_id)s", "Members of the project."),
    policy.RuleDefault("project_reader_api", "role:reader and project_id:%(project_id)s", "Readers of the project."),
    policy.RuleDefault("project_manager_or_admin", "rule:project_manager_api or rule:admin_api", "Managers and above."),
    policy.RuleDefault("project_member_or_admin", "rule:project_member_api or rule:admin_api", "Members and above."),
    policy.RuleDefault("project_reader_or_admin", "rule:project_reader_api or rule:admin_api", "Readers and above."),
    policy.RuleDefault(
        "project_member_or_service",
        "rule:project_member_api or rule:service_api or rule:admin_api",
        "Members and above, and services.",
    ),
)


def _documented(name: str, check: str, description: str, *operations: str) -> Any:
    return policy.DocumentedRuleDefault(
        name,
        check,
        description,
        [dict(zip(("method", "path"), operation.split(" "), strict=True)) for operation in operations],
        scope_types=["project"],
    )


RULES = (
    _documented("cyborg:device:get_all", MANAGER_OR_ADMIN, "List devices.", "GET /v2/devices"),
    _documented("cyborg:device:get_one", MANAGER_OR_ADMIN, "Show a device.", "GET /v2/devices/{uuid}"),
    _documented("cyborg:device:disable", ADMIN, "Disable a device.", "POST /v2/devices/{uuid}/disable"),
    _documented("cyborg:device:enable", ADMIN, "Enable a device.", "POST /v2/devices/{uuid}/enable"),
    _documented(
        "cyborg:device:clean",
        "role:admin",
        "Clean a device again.",
        "POST /v2/devices/{uuid}/clean",
        "POST /autoclave/v1/devices/{device}/clean",
    ),
    _documented("cyborg:deployable:get_all", MANAGER_OR_ADMIN, "List deployables.", "GET /v2/deployables"),
    _documented("cyborg:deployable:get_one", MANAGER_OR_ADMIN, "Show a deployable.", "GET /v2/deployables/{uuid}"),
    _documented("cyborg:deployable:program", ADMIN, "Program a deployable.", "PATCH /v2/deployables/{uuid}/program"),
    _documented("cyborg:attribute:get_all", MANAGER_OR_ADMIN, "List attributes.", "GET /v2/attributes"),
    _documented("cyborg:attribute:get_one", MANAGER_OR_ADMIN, "Show an attribute.", "GET /v2/attributes/{uuid}"),
    _documented("cyborg:attribute:create", ADMIN, "Add an attribute.", "POST /v2/attributes"),
    _documented("cyborg:attribute:delete", ADMIN, "Delete an attribute.", "DELETE /v2/attributes/{uuid}"),
    _documented("cyborg:device_profile:get_all", READER_OR_ADMIN, "List device profiles.", "GET /v2/device_profiles"),
    _documented(
        "cyborg:device_profile:get_one", READER_OR_ADMIN, "Show a device profile.", "GET /v2/device_profiles/{uuid}"
    ),
    _documented("cyborg:device_profile:create", ADMIN, "Create a device profile.", "POST /v2/device_profiles"),
    _documented(
        "cyborg:device_profile:delete",
        ADMIN,
        "Delete device profiles.",
        "DELETE /v2/device_profiles/{uuid}",
        "DELETE /v2/device_profiles",
    ),
    _documented("cyborg:arq:get_all", READER_OR_ADMIN, "List accelerator requests.", "GET /v2/accelerator_requests"),
    _documented(
        "cyborg:arq:get_one", READER_OR_ADMIN, "Show an accelerator request.", "GET /v2/accelerator_requests/{uuid}"
    ),
    _documented(
        "cyborg:arq:create", MEMBER_OR_SERVICE, "Create accelerator requests.", "POST /v2/accelerator_requests"
    ),
    _documented(
        "cyborg:arq:update",
        MEMBER_OR_SERVICE,
        "Bind and unbind accelerator requests.",
        "PATCH /v2/accelerator_requests",
        "PATCH /v2/accelerator_requests/{uuid}",
    ),
    _documented(
        "cyborg:arq:delete",
        MEMBER_OR_SERVICE,
        "Delete accelerator requests.",
        "DELETE /v2/accelerator_requests",
        "DELETE /v2/accelerator_requests/{uuid}",
    ),
    _documented(
        "autoclave:device:get",
        ADMIN,
        "Show devices in full, and their history.",
        "GET /autoclave/v1/devices",
        "GET /autoclave/v1/devices/{device}",
        "GET /autoclave/v1/devices/{device}/history",
    ),
    _documented(
        "autoclave:device:act",
        ADMIN,
        "Hold, release, accept, forget and reclaim devices.",
        "POST /autoclave/v1/devices/{device}/hold",
        "POST /autoclave/v1/devices/{device}/release",
        "POST /autoclave/v1/devices/{device}/accept",
        "POST /autoclave/v1/devices/{device}/forget",
        "POST /autoclave/v1/devices/{device}/take-back",
    ),
    _documented(
        "autoclave:burned:get",
        ADMIN,
        "Show burned one-time-use devices.",
        "GET /autoclave/v1/burned",
        "GET /autoclave/v1/burned/{provider}",
        "GET /autoclave/v1/burned/{provider}/history",
    ),
    _documented(
        "autoclave:burned:release",
        ADMIN,
        "Release a burned device as clean.",
        "POST /autoclave/v1/burned/{provider}/release",
    ),
    _documented(
        "autoclave:function:get",
        ADMIN,
        "Show the PCI functions for instances, and the instances that have them.",
        "GET /autoclave/v1/functions",
    ),
    _documented(
        "autoclave:host:get",
        ADMIN,
        "Show hosts and their maintenance.",
        "GET /autoclave/v1/hosts",
        "GET /autoclave/v1/hosts/{host}",
    ),
    _documented(
        "autoclave:host:act",
        ADMIN,
        "Begin and end maintenance of hosts.",
        "POST /autoclave/v1/hosts/{host}/maintenance",
        "POST /autoclave/v1/hosts/{host}/resume",
    ),
    _documented(
        "autoclave:explain",
        ADMIN,
        "Explain which hosts satisfy flavor and image, and what the others lack.",
        "GET /autoclave/v1/explain",
    ),
    _documented("autoclave:metrics:get", ADMIN, "Read the metrics.", "GET /metrics"),
)


_SERVERS = "/compute/v2.1/servers"
_SERVER = f"{_SERVERS}/{{server}}"
_SPECS = "/compute/v2.1/flavors/{flavor}/os-extra_specs"
_IMAGES = "/image/v2/images"
_IMAGE = f"{_IMAGES}/{{image}}"


def _nova(name: str, check: str, description: str, *operations: str) -> Any:
    return _documented(f"os_compute_api:{name}", check, description, *operations)


COMPUTE_RULES = (
    _nova("os-flavor-manage:create", ADMIN, "Create a flavor.", "POST /compute/v2.1/flavors"),
    _nova(
        "os-flavor-manage:update", ADMIN, "Change the description of a flavor.", "PUT /compute/v2.1/flavors/{flavor}"
    ),
    _nova("os-flavor-manage:delete", ADMIN, "Delete a flavor.", "DELETE /compute/v2.1/flavors/{flavor}"),
    _nova(
        "os-flavor-access",
        ADMIN,
        "List the projects that may use a flavor: none.",
        "GET /compute/v2.1/flavors/{flavor}/os-flavor-access",
    ),
    _nova("os-flavor-extra-specs:index", READER_OR_ADMIN, "List a flavor's extra specs.", f"GET {_SPECS}"),
    _nova("os-flavor-extra-specs:show", READER_OR_ADMIN, "Show an extra spec.", f"GET {_SPECS}/{{spec}}"),
    _nova("os-flavor-extra-specs:create", ADMIN, "Set extra specs.", f"POST {_SPECS}"),
    _nova("os-flavor-extra-specs:update", ADMIN, "Set an extra spec.", f"PUT {_SPECS}/{{spec}}"),
    _nova("os-flavor-extra-specs:delete", ADMIN, "Delete an extra spec.", f"DELETE {_SPECS}/{{spec}}"),
    _nova("servers:index", READER_OR_ADMIN, "List servers.", f"GET {_SERVERS}"),
    _nova("servers:detail", READER_OR_ADMIN, "List servers in detail.", f"GET {_SERVERS}/detail"),
    _nova("servers:show", READER_OR_ADMIN, "Show a server.", f"GET {_SERVER}"),
    _nova("servers:create", MEMBER_OR_ADMIN, "Create servers.", f"POST {_SERVERS}"),
    _nova("servers:update", MEMBER_OR_ADMIN, "Change the name or description of a server.", f"PUT {_SERVER}"),
    _nova("servers:delete", MEMBER_OR_ADMIN, "Delete a server.", f"DELETE {_SERVER}"),
    _nova("servers:start", MEMBER_OR_ADMIN, "Start a server.", f"POST {_SERVER}/action"),
    _nova("servers:stop", MEMBER_OR_ADMIN, "Stop a server.", f"POST {_SERVER}/action"),
    _nova("servers:reboot", MEMBER_OR_ADMIN, "Reboot a server.", f"POST {_SERVER}/action"),
    _nova("servers:rebuild", MEMBER_OR_ADMIN, "Rebuild a server from an image.", f"POST {_SERVER}/action"),
    _nova("os-deferred-delete:force", MEMBER_OR_ADMIN, "Force-delete a server.", f"POST {_SERVER}/action"),
    _nova("server-metadata:index", READER_OR_ADMIN, "List a server's metadata.", f"GET {_SERVER}/metadata"),
    _nova("server-metadata:show", READER_OR_ADMIN, "Show a metadata item.", f"GET {_SERVER}/metadata/{{item}}"),
    _nova("server-metadata:create", MEMBER_OR_ADMIN, "Add metadata.", f"POST {_SERVER}/metadata"),
    _nova("server-metadata:update_all", MEMBER_OR_ADMIN, "Replace the metadata.", f"PUT {_SERVER}/metadata"),
    _nova("server-metadata:update", MEMBER_OR_ADMIN, "Set a metadata item.", f"PUT {_SERVER}/metadata/{{item}}"),
    _nova("server-metadata:delete", MEMBER_OR_ADMIN, "Delete a metadata item.", f"DELETE {_SERVER}/metadata/{{item}}"),
    _nova("os-services:list", ADMIN, "List the agents that run servers.", "GET /compute/v2.1/os-services"),
    _nova(
        "os-services:update",
        ADMIN,
        "Enable or disable a host, or set forced_down.",
        "PUT /compute/v2.1/os-services/{service}",
    ),
    _nova(
        "os-services:delete",
        ADMIN,
        "Remove a host from the cloud.",
        "DELETE /compute/v2.1/os-services/{service}",
    ),
    _nova("os-hypervisors:list", ADMIN, "List the hosts.", "GET /compute/v2.1/os-hypervisors"),
    _nova("os-hypervisors:list-detail", ADMIN, "List the hosts in detail.", "GET /compute/v2.1/os-hypervisors/detail"),
    _nova("os-hypervisors:show", ADMIN, "Show a host.", "GET /compute/v2.1/os-hypervisors/{hypervisor}"),
    _nova("os-aggregates:index", ADMIN, "List the aggregates: none.", "GET /compute/v2.1/os-aggregates"),
    _nova(
        "os-availability-zone:list",
        READER_OR_ADMIN,
        "List the availability zones: one.",
        "GET /compute/v2.1/os-availability-zone",
    ),
    _nova(
        "os-availability-zone:detail",
        ADMIN,
        "List the availability zones with their hosts.",
        "GET /compute/v2.1/os-availability-zone/detail",
    ),
    _nova("os-migrations:index", ADMIN, "List the migrations: none.", "GET /compute/v2.1/os-migrations"),
    _nova(
        "os-instance-actions:list",
        READER_OR_ADMIN,
        "List the actions of a server: none are recorded.",
        f"GET {_SERVER}/os-instance-actions",
    ),
    _documented("get_images", READER_OR_ADMIN, "List images.", f"GET {_IMAGES}"),
    _documented("get_image", READER_OR_ADMIN, "Show an image.", f"GET {_IMAGE}"),
    _documented("add_image", MEMBER_OR_ADMIN, "Create an image.", f"POST {_IMAGES}"),
    _documented("modify_image", MEMBER_OR_ADMIN, "Change an image.", f"PATCH {_IMAGE}"),
    _documented("delete_image", MEMBER_OR_ADMIN, "Delete an image.", f"DELETE {_IMAGE}"),
    _documented("download_image", READER_OR_ADMIN, "Download the data of an image.", f"GET {_IMAGE}/file"),
    _documented("upload_image", MEMBER_OR_ADMIN, "Upload the data of an image.", f"PUT {_IMAGE}/file"),
)
"""List the rules of the compute and image APIs (``[compute] enabled``)."""


def list_rules() -> list[Any]:
    """Return every rule with its default, for oslopolicy-sample-generator."""
    return [*BASE_RULES, *RULES, *COMPUTE_RULES]


class Policy:
    """Enforce the rules: the defaults, and the changes in the operator's policy files.

    Read changed files again before the next decision. While they are invalid, keep the last valid rules.

    :raises InvalidConfiguration: see :meth:`autoclave.api.policy_files.PolicyFiles.read`.
    """

    def __init__(self, conf: Any) -> None:
        opts.set_defaults(conf)  # registers the options of [oslo_policy]
        self._conf = conf
        self._defaults = list_rules()
        self._files = PolicyFiles(conf, {rule.name: rule.check_str for rule in self._defaults})
        self._reading = threading.Lock()
        self._fault: str | None = None
        self._seen = self._files.stamps()
        self._enforcer = self._made_of(self._files.read(self._seen))

    def allows(self, context: RequestContext, rule: str) -> bool:
        """Return whether *rule* allows *context* to act within its own project.

        :raises PolicyUnavailable: the rule asks another service, which did not answer.
        """
        self._refresh()
        # A token without a project is in no project: it must not match "None" with "None".
        target = {} if context.project_id is None else {"project_id": context.project_id}
        if context.user_id is not None:
            target["user_id"] = context.user_id
        try:
            # authorize() returns False when a check fails; it raises only with do_raise.
            return bool(self._enforcer.authorize(rule, target, context))
        except policy.InvalidScope as error:
            LOG.info("Denied to %s: %s", context.user_id, error)
            return False
        except (RuntimeError, RequestException) as error:  # raised by oslo.policy's checks over HTTP
            raise PolicyUnavailable(f"rule {rule} cannot be evaluated: {error}") from error

    def require(self, context: RequestContext, rule: str) -> None:
        """Require that *rule* allows *context* to act.

        :raises Forbidden: it does not.
        """
        if not self.allows(context, rule):
            raise Forbidden(f"Access was denied to the following resource: {rule}")

    def _refresh(self) -> None:
        """Read the files again if they have changed."""
        with self._reading:
            try:
                stamps = self._files.stamps()
                if stamps == self._seen:
                    return
                # Store the stamps first, so that unusable files are reported once, not by each request.
                self._seen = stamps
                self._enforcer = self._made_of(self._files.read(stamps))
            except InvalidConfiguration as error:
                if str(error) != self._fault:
                    LOG.error("Policy files are invalid, the last valid rules stay in force: %s", error)
                self._fault = str(error)
                return
            self._fault = None
        LOG.info("Policy files reloaded")

    def _made_of(self, changed: dict[str, str]) -> Any:
        """Return an enforcer of the defaults and the *changed* rules. It reads no file itself."""
        enforcer = policy.Enforcer(self._conf, use_conf=False)
        enforcer.register_defaults(self._defaults)
        texts = {rule.name: rule.check_str for rule in self._defaults} | changed
        enforcer.set_rules(policy.Rules.from_dict(texts), use_conf=False)
        return enforcer
