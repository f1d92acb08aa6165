"""How long the erase of a drive will take, as far as it can be told before it begins."""

from autoclave.drivers.base import Estimate
from autoclave.exceptions import HardwareError
from autoclave.hardware.erase_rates import EraseRates
from autoclave.hardware.nvme import Controller
from autoclave.hardware.nvme_cli import SES, NvmeCli
from autoclave.rules.cleanup_policy import CleanupAction

_REPORTED_AS = {CleanupAction.SANITIZE_CRYPTO: "crypto_erase", CleanupAction.SANITIZE_BLOCK: "block_erase"}
"""The operation's name in the Sanitize Status log page."""


def estimate(nvme: NvmeCli, rates: EraseRates, controller: Controller, action: CleanupAction) -> Estimate:
    """How long *action* takes on a drive.

    A sanitize: what the drive itself says in its Sanitize Status log page (81h). Zeroing: its size at the pace of the
    last drive of its model on this host; reading back everything is not in it. A format: what the last drive of its
    model took on this host.
    """
    if action in _REPORTED_AS:
        try:
            seconds = nvme.sanitize_log(controller.path).estimates.get(_REPORTED_AS[action])
        except HardwareError as error:
            return Estimate(None, f"its sanitize log cannot be read: {error}")
        return Estimate(seconds, "the drive reports it" if seconds is not None else "the drive does not report it")
    rate = rates.of(controller.model, str(action))
    if action in SES:
        if rate is None:
            return Estimate(
                None, "no drive of this model has been formatted on this host yet; most take seconds to minutes"
            )
        size = sum(namespace.size_bytes for namespace in controller.namespaces)
        return Estimate(size / rate, "as the last drive of this model")
    if rate is None:
        return Estimate(None, "no drive of this model has been overwritten on this host yet")
    size = sum(namespace.size_bytes for namespace in controller.namespaces)
    return Estimate(size / rate, f"{rate / 1e6:.0f} MB/s, as the last drive of this model")
