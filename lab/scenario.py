"""The stories of the lab, in their order. Runs in the guest (``lab/guest-init``), once a boot.

Every fact prints one line; the exit code is 0 if all of them held.
"""

import os
import sys

from stories import (
    bystanders,
    death,
    firmware,
    first_light,
    instances,
    layout,
    one_time_use,
    plan,
    refusals,
    reset,
    virtual_function,
    visits,
)
from stories.host import PROFILE, RESOURCE_CLASS, SHARE, Host


def main() -> int:
    host = Host()
    try:
        if os.environ["LAB_BOOT"] == "1":
            until_the_power_is_cut(host)
        else:
            host.facts.failed = int((SHARE / "failed").read_text())
            death.after_power_cut(host)
            host.stop()
            bystanders.tell(host)
    finally:
        host.clear_up()
    host.facts.say("the end")
    print(f"{host.facts.failed} facts failed" if host.facts.failed else "every fact held")
    return min(host.facts.failed, 1)


def until_the_power_is_cut(host: Host) -> None:
    """The first boot."""
    bystanders.prepare()
    host.hypervisor.start()
    virtual_function.prepare(host)
    host.drives["LAB0002"].fill()
    plan.tell(host)
    host.start()
    host.wait_for_devices()
    first_light.tell(host)
    host.cloud.make_profile(PROFILE, RESOURCE_CLASS)
    visits.tell(host)
    layout.tell(host)
    virtual_function.tell(host)
    reset.tell(host)
    instances.tell(host)
    one_time_use.tell(host)
    firmware.tell(host)
    refusals.tell(host)
    death.killed(host)
    death.power_cut(host)


if __name__ == "__main__":
    sys.exit(main())
