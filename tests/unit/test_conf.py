"""A configuration file is judged as a whole when it is read, by every command."""

import re
from pathlib import Path

import pytest

from autoclave.conf import new_config
from autoclave.exceptions import InvalidConfiguration


def refusal(tmp_path: Path, *texts: str) -> str:
    files = []
    for number, text in enumerate(texts):
        files.append(tmp_path / f"{number}.conf")
        files[-1].write_text(text)
    with pytest.raises(InvalidConfiguration) as refused:
        new_config([str(file) for file in files])
    return str(refused.value).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[nvme]\ncleanup_timout = 30", "[nvme] cleanup_timout: {} did you mean cleanup_timeout?"),
        ("[nvme]\ncleanup-timeout = 30", "[nvme] cleanup-timeout: {} did you mean cleanup_timeout?"),
        ("[nova]\nauth-url = http://x", "[nova] auth-url: {} did you mean auth_url?"),
        ("[NVME]\nVerify = full", "[nvme] Verify: {} did you mean verify?"),
        ("[conductor]\nx = 1", "[conductor] x: {} known options are bind_lease, rpc_timeout, sweep_interval"),
        ("[placement]\nregion = x", "[placement] region: {} did you mean region_name?"),
    ],
)
def test_an_option_that_does_not_exist_is_refused_with_the_one_that_was_meant(
    tmp_path: Path, text: str, message: str
) -> None:
    assert refusal(tmp_path, text) == message.format("0.conf sets an option that does not exist;")


@pytest.mark.parametrize(("section", "meant"), [("nvmee", "nvme"), ("agents", "agent"), ("Databse", "database")])
def test_a_section_that_is_nearly_ours_is_refused_with_the_one_that_was_meant(
    tmp_path: Path, section: str, meant: str
) -> None:
    message = refusal(tmp_path, f"[{section}]\nx = 1")
    assert message == f"[{section}]: 0.conf has this section, which no service reads; did you mean [{meant}]?"


def test_sections_of_others_are_none_of_our_business(tmp_path: Path) -> None:
    file = tmp_path / "autoclave.conf"
    others = (
        "keystone_authtoken", "oslo_messaging_rabbit", "oslo_policy", "oslo_middleware", "profiler", "api_database",
        "placement_database", "libvirt", "privsep", "cors",
    )  # fmt: skip
    file.write_text("[DEFAULT]\ndebug = true\n" + "".join(f"[{name}]\nx = 1\n" for name in others))
    new_config([str(file)])


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("[nvme]\ncleanup_timeout = soon", "'soon', which is not a whole number from 1 to 2592000"),
        ("[nova]\nretriable_status_codes = abc", "'abc', which is not a list of whole numbers"),
        ("[nova]\ntls_min_version = 9", "'9', which is not one of 1.2, 1.3"),
        ("[nvme]\ncleanup_timeout = 0", "'0', which is not a whole number from 1 to 2592000"),
        ("[nvme]\npoll_interval = fast", "'fast', which is not a number from 0.01 to 86400"),
        ("[nvme]\nverify = some", "'some', which is not one of none, sample, full"),
        ("[nvme]\nclean_on_discovery = perhaps", "'perhaps', which is not true or false"),
        ("[conductor]\nbind_lease = 300", "'300', which is not a whole number from 1 to 299"),
        ("[nova]\ntimeout = 0", "'0', which is not a number from 0.1 to 60.0"),
        (
            "[nova]\nauth_type = kerberos",
            "'kerberos', which is not one of password, v3applicationcredential, admin_token, none, or another "
            "installed plugin of keystoneauth1",
        ),
        ("[nova]\ninsecure = maybe", "'maybe', which is not true or false"),
        ("[placement]\nvalid_interfaces = inside", "'inside', which is not a list of any of public, internal, admin"),
        ("[api]\nport = 70000", "'70000', which is not a whole number from 0 to 65535"),
        ("[api]\nhost_ip = a b", "'a b', which is not an address or a host name"),
        (
            "[nvme]\ncleanup_timeout = 7200  # two hours",
            "'7200  # two hours', which is not a whole number from 1 to 2592000; a comment needs a line of its own",
        ),
    ],
)
def test_a_value_that_an_option_cannot_have_is_refused_with_what_it_can_have(
    tmp_path: Path, line: str, allowed: str
) -> None:
    section, _, rest = line.partition("\n")
    assert refusal(tmp_path, line) == f"{section} {rest.partition(' =')[0]}: 0.conf says {allowed}"


def test_of_several_files_the_one_that_counts_is_named(tmp_path: Path) -> None:
    good, bad = "[nvme]\ncleanup_timeout = 5", "[nvme]\ncleanup_timeout = x"
    assert refusal(tmp_path, good, bad).startswith("[nvme] cleanup_timeout: 1.conf says 'x'")


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("conductor", "sweep_interval = inf"),
        ("conductor", "sweep_interval = nan"),
        ("agent", "periodic_interval = 1e300"),
        ("agent", "rebind_timeout = nan"),
        ("nvme", "poll_interval = inf"),
        ("placement", "timeout = nan"),
        ("api", "threads = 100000000"),
        ("database", "timeout = 99999999999"),
    ],
)
def test_a_number_that_cannot_be_waited_for_or_counted_to_is_refused(tmp_path: Path, section: str, line: str) -> None:
    file = tmp_path / "autoclave.conf"
    file.write_text(f"[{section}]\n{line}\n")
    with pytest.raises(InvalidConfiguration, match=rf"\[{section}\] {line.split()[0]}: .*number from "):
        new_config([str(file)])


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("placement", "endpoint = garbage"),
        ("placement", "endpoint = http://"),
        ("placement", "endpoint_override = garbage"),
        ("nova", "endpoint_override = http://"),
        ("nova", "endpoint_override = http://[::1"),
        ("nova", "endpoint_override = http://host:99999/"),
        ("placement", "auth_url = keystone:5000"),
        ("api", "public_endpoint = http://[::1"),
        ("api", "public_endpoint = autoclave.example.org"),
        ("agent", "rpc_version_cap = banana"),
    ],
)
def test_a_text_that_means_nothing_is_refused(tmp_path: Path, section: str, line: str) -> None:
    file = tmp_path / "autoclave.conf"
    file.write_text(f"[{section}]\n{line}\n")
    with pytest.raises(
        InvalidConfiguration, match=rf"\[{section}\] {line.split()[0]}: .*{re.escape(line.split()[-1])}"
    ):
        new_config([str(file)])
    file.write_text("[placement]\nendpoint = https://placement.example.org/v1\n[agent]\nrpc_version_cap = 1.0\n")
    assert new_config([str(file)]).agent.rpc_version_cap == "1.0"


def test_the_options_of_an_undocumented_plugin_are_known_where_it_is_named(tmp_path: Path) -> None:
    file = tmp_path / "autoclave.conf"
    file.write_text("[placement]\nauth_type = v3oidcpassword\nidentity_provider = idp\n")
    assert new_config([str(file)]).placement.identity_provider == "idp"
    assert "identity_provider: 0.conf sets an option that does not exist" in refusal(
        tmp_path, "[placement]\nauth_type = password\nidentity_provider = idp\n"
    )


def test_interface_is_the_old_name_of_valid_interfaces(tmp_path: Path) -> None:
    assert refusal(tmp_path, "[placement]\ninterface = inside\n") == (
        "[placement] valid_interfaces: 0.conf says 'inside', which is not a list of any of public, internal, admin"
    )
    file = tmp_path / "autoclave.conf"
    file.write_text("[placement]\ninterface = public\n")
    assert new_config([str(file)]).placement.valid_interfaces == ["public"]


def test_a_dollar_that_begins_no_options_name_is_refused_with_how_to_write_it(tmp_path: Path) -> None:
    file = tmp_path / "autoclave.conf"
    file.write_text('[nvme]\ndevice_spec = {"address": "$name"}\n')
    with pytest.raises(InvalidConfiguration, match=r"\[nvme\] device_spec: .*write '\$\$' for the character itself"):
        new_config([str(file)])
    file.write_text('[nvme]\ndevice_spec = {"address": "$$name"}\n')
    assert new_config([str(file)]).nvme.device_spec == ['{"address": "$name"}']


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[agent]\nresource_provider_name = caf\xe9\n", "line 2 of {} is not UTF-8"),
        (b"\x7fELF\x02\x00\x00", "line 1 of {} contains a NUL character"),
    ],
)
def test_a_file_that_is_no_text_is_refused_with_its_name_and_the_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "autoclave.conf"
    file.write_bytes(content)
    with pytest.raises(InvalidConfiguration, match=re.escape(message.format(file))):
        new_config([str(file)])


def test_a_directory_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="is a directory, not a file"):
        new_config([str(tmp_path)])
