"""Define [compute]: instances, for a cloud without Nova."""

from oslo_config import cfg

from autoclave.conf.numbers import FiniteFloatOpt

GROUP = "compute"

OPTS = [
    cfg.BoolOpt(
        "enabled",
        default=False,
        help="Whether this deployment starts instances itself, behind a subset of Nova's API. Leave it off where there "
        "is Nova. `autoclave up` turns it on where guests can be run, unless a file says otherwise.",
    ),
    cfg.StrOpt(
        "provider_config_location",
        default="/etc/autoclave/provider_config/",
        help="Directory of ``*.yaml`` files with inventories and traits that the operator adds to resource providers. "
        "They are read in lexicographic order when the agent starts.",
    ),
    cfg.StrOpt(
        "virt_driver",
        default="libvirt",
        choices=["libvirt", "null"],
        help="What runs the guests: libvirt, or null, which runs none and is for rehearsals on simulated hosts.",
    ),
    cfg.StrOpt("libvirt_uri", default="qemu:///system", help="The hypervisor that libvirt is to connect to."),
    cfg.StrOpt(
        "virt_type",
        default="kvm",
        choices=["kvm", "qemu", "test"],
        help="What executes guests of libvirt: kvm, qemu (emulation, where the host cannot virtualise), or test, for "
        "libvirt's own test:///default, which starts nothing.",
    ),
    FiniteFloatOpt(
        "shutdown_timeout",
        default=60.0,
        min=0,
        help="Seconds that a guest has to shut down when it is stopped or rebooted, before its power is cut.",
    ),
    cfg.IntOpt("reserved_host_cpus", default=0, min=0, help="Processors that are not offered to instances."),
    cfg.IntOpt("reserved_host_memory_mb", default=512, min=0, help="Memory, in MiB, that is not offered to instances."),
    cfg.IntOpt("reserved_host_disk_gb", default=0, min=0, help="Disk space, in GiB, that is not offered to instances."),
    cfg.IntOpt(
        "max_image_size_mb",
        default=8192,
        min=1,
        help="The largest image, in MiB, that the embedded image service takes.",
    ),
]
