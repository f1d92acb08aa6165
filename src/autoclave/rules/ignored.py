"""What flavors and images say that means nothing here: they may have been made for Nova, so it is no error.

It is told instead (``autoclave explain``), or an operator would take for kept what nobody keeps.
"""

from collections.abc import Collection, Mapping

from autoclave.rules.image_hardware import HEEDED

_SAME_HARDWARE = (
    "no guest gets other virtual hardware for it: processors are not pinned, and there are no NUMA nodes and no huge "
    "pages"
)
_NO_QUOTA = "what a guest does with its processors, disks and network is not limited"
_BY_TRAITS_ONLY = "hosts are told apart by resources and traits only: ask for a trait"
_NOT_VERIFIED = "the signature of an image is not verified"
_UNKNOWN = "Autoclave does not know it"

_SPECS = {
    "hw:": _SAME_HARDWARE,
    "quota:": _NO_QUOTA,
    "capabilities:": _BY_TRAITS_ONLY,
    "aggregate_instance_extra_specs:": _BY_TRAITS_ONLY,
}
_PROPERTIES = {"hw_": _SAME_HARDWARE, "img_signature": _NOT_VERIFIED, "img_": _UNKNOWN, "os_": _UNKNOWN}
_ONLY_SAID = frozenset({"os_hash_algo", "os_hash_value", "os_hidden", "os_version"})
"""Properties that say something of the image's data, and ask for nothing: Glance's own, and the release."""


def ignored_extra_specs(extra_specs: Mapping[str, str], known: Collection[str]) -> dict[str, str]:
    """The keys of a flavor that nothing here follows from, in order, each with the reason.

    :param known: the keys that something follows from.
    """
    return {key: _reason(key, _SPECS) or _unknown(key) for key in sorted(extra_specs) if key not in known}


def ignored_properties(properties: Collection[str]) -> dict[str, str]:
    """The properties by which an image asks Nova for a kind of guest, in order, each with the reason.

    An image may have any others; they ask nobody for anything.
    """
    found = {key: _reason(key, _PROPERTIES) for key in sorted(properties) if key not in _ONLY_SAID | HEEDED}
    return {key: reason for key, reason in found.items() if reason is not None}


def _reason(key: str, reasons: Mapping[str, str]) -> str | None:
    return next((reason for prefix, reason in reasons.items() if key.startswith(prefix)), None)


def _unknown(key: str) -> str:
    # Nova compares what has no scope with the properties of hosts and of their aggregates.
    return _UNKNOWN if ":" in key else _BY_TRAITS_ONLY
