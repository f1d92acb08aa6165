"""Which files of provider configuration are read, and which are refused because of what they are."""

import logging
import os
from pathlib import Path

import pytest

from autoclave.agent.compute.provider_config import MAX_FILE_BYTES, load, load_file
from autoclave.exceptions import ProviderConfigFaults
from autoclave.rules.provider_config import COMPUTE_NODE, ProviderConfig, parse

EXAMPLE = Path(__file__).parents[2] / "docs" / "source" / "examples" / "provider-config.yaml"


def text(*names: str) -> str:
    return "meta: {schema_version: 1.0}\nproviders:\n" + "".join(f"- identification: {{name: {n}}}\n" for n in names)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "provider_config"
    made.mkdir(mode=0o755)
    return made


def put(path: Path, content: str | bytes, mode: int = 0o644) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


def faults(directory: Path, user: int | None = None) -> list[str]:
    with pytest.raises(ProviderConfigFaults) as refused:
        load(str(directory), user=user)
    return [fault.replace(f"{directory}/", "") for fault in refused.value.faults]


def test_files_are_read_in_lexicographic_order_whatever_the_order_of_their_making(directory: Path) -> None:
    for name in ("b.yaml", "10.yaml", "a.yaml", "9.yaml"):
        put(directory / name, text(name))
    config = load(str(directory))
    assert [entry.name for entry in config.entries] == ["10.yaml", "9.yaml", "a.yaml", "b.yaml"]
    assert str(config.entries[0].place) == f"{directory}/10.yaml:3: providers[0]"


def test_only_yaml_files_that_are_not_hidden_are_read_and_one_named_yml_is_told(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (".a.yaml", "b.yaml~", "c.yaml.rpmsave", "d.yml", "e.YAML", ".yaml"):
        put(directory / name, "not: [a document")
    put(directory / "f.yaml", text("n"))
    assert [entry.name for entry in load(str(directory)).entries] == ["n"]
    [warning] = caplog.messages
    assert warning == f"{directory}/d.yml is not read: only names that end in .yaml are"


def test_a_directory_that_is_not_there_configures_nothing_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert load(str(tmp_path / "none")) == ProviderConfig()
    assert caplog.messages == [f"There is no {tmp_path}/none: nothing is added to resource providers"]


def test_an_empty_directory_and_no_directory_configure_nothing(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(str(directory)) == ProviderConfig()
    put(directory / "a.yaml", text("n"))
    monkeypatch.chdir(directory)
    assert load("") == ProviderConfig()


def test_a_location_that_is_a_file_is_refused(directory: Path) -> None:
    path = put(directory / "a.yaml", text("n"))
    assert faults(path) == [f"{path}: cannot be read: Not a directory"]


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666, 0o620])
def test_a_file_that_others_can_write_is_refused(directory: Path, mode: int) -> None:
    put(directory / "a.yaml", text("n"), mode)
    assert faults(directory) == [f"a.yaml: can be written by others than its owner (mode 0{mode:o}); use chmod go-w"]


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_directory_that_others_can_write_is_refused(directory: Path, mode: int) -> None:
    put(directory / "a.yaml", text("n"))
    directory.chmod(mode)
    [fault] = faults(directory)
    assert fault == f"{directory}: can be written by others than its owner (mode {mode:04o}); use chmod go-w"


def test_what_belongs_to_another_user_is_refused_and_what_is_roots_or_the_services_is_not(directory: Path) -> None:
    path = put(directory / "a.yaml", text("n"))
    owner, service = os.geteuid(), os.geteuid() + 1
    if owner == 0:
        assert load(str(directory), user=service).entries
        owner, service = 54321, 0
        for each in (directory, path):
            os.chown(each, owner, -1)
    says = f"belongs to uid {owner}; it must belong to root or to the user of the service, uid {service}"
    assert faults(directory, service) == [f"{directory}: {says}", f"a.yaml: {says}"]
    assert load(str(directory), user=owner).entries


def test_the_file_that_a_link_names_is_the_one_that_is_judged(directory: Path, tmp_path: Path) -> None:
    target = put(tmp_path / "target", text("n"))
    (directory / "a.yaml").symlink_to(target)
    assert load(str(directory)).entries
    target.chmod(0o666)
    assert faults(directory) == ["a.yaml: can be written by others than its owner (mode 0666); use chmod go-w"]


def test_what_is_no_readable_text_is_refused_with_the_reason(directory: Path) -> None:
    (directory / "a.yaml").mkdir()
    (directory / "b.yaml").symlink_to("nowhere")
    os.mkfifo(directory / "c.yaml", 0o644)
    put(directory / "d.yaml", b"meta:\n  x: \xe4\n")
    put(directory / "e.yaml", text("n").encode("utf-16"))
    put(directory / "f.yaml", b"#" * (MAX_FILE_BYTES + 1))
    put(directory / "g.yaml", "")
    assert faults(directory) == [
        "a.yaml: cannot be read: Is a directory",
        "b.yaml: cannot be read: No such file or directory",
        "c.yaml: is not a regular file",
        "d.yaml:2: is not UTF-8: byte 11 cannot be decoded",
        "e.yaml:1: is not UTF-8: byte 0 cannot be decoded",
        "f.yaml: is larger than 1048576 bytes; split it",
        "g.yaml:1: is empty",
    ]


def test_a_file_of_the_largest_size_is_read(directory: Path) -> None:
    body = text("n")
    put(directory / "a.yaml", body + "#" * (MAX_FILE_BYTES - len(body)))
    assert load(str(directory)).entries


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_file_without_permission_is_refused(directory: Path) -> None:
    put(directory / "a.yaml", text("n"), 0o000)
    assert faults(directory) == ["a.yaml: cannot be read: Permission denied"]


def test_a_byte_order_mark_does_no_harm(directory: Path) -> None:
    put(directory / "a.yaml", text("n").encode("utf-8-sig"))
    assert [entry.name for entry in load(str(directory)).entries] == ["n"]


def test_a_file_whose_name_is_no_text_is_read_and_told_in_one_line(directory: Path) -> None:
    path = directory / os.fsdecode(b"\xff\n.yaml")
    put(path, "meta: {}")
    [fault] = faults(directory)
    assert fault == f"'{directory}/\\udcff\\n.yaml':1: meta: schema_version is missing".replace(f"{directory}/", "")
    assert fault.isprintable()


def test_everything_that_is_wrong_with_directory_files_and_contents_is_told_at_once(directory: Path) -> None:
    put(directory / "a.yaml", text("n"), 0o666)
    put(directory / "b.yaml", text("m", "m"))
    put(directory / "c.yaml", text("n", "m"))
    directory.chmod(0o777)
    assert [fault.split(":")[0] for fault in faults(directory)] == [str(directory), "a.yaml", "b.yaml", "c.yaml"]


def test_what_is_ignored_is_logged(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(directory / "a.yaml", text("n") + "  trait: {}\n")
    load(str(directory))
    assert caplog.messages == [
        f"{directory}/a.yaml:4: providers[0].trait: unknown field, ignored; did you mean traits?"
    ]


def test_one_file_is_read_whatever_its_name_and_judged_alike(directory: Path) -> None:
    path = put(directory / "new", text("n"))
    assert load_file(path).entries
    path.chmod(0o666)
    with pytest.raises(ProviderConfigFaults, match="can be written by others"):
        load_file(path)


def test_the_documented_sample_is_read_and_shows_every_field() -> None:
    config = parse({EXAMPLE.name: EXAMPLE.read_text()})
    assert [entry.provider for entry in config.entries] == [
        COMPUTE_NODE,
        "compute-1_0000:81:00.0",
        "9f2c6c1e-4d53-4d5c-8c0b-0a6f1f6d7b11",
    ]
    assert config.notes == ()
    [llc, licences] = config.entries[0].inventories.values()
    assert (llc.total, llc.reserved, llc.max_unit) == (22, 2, 11)
    assert (licences.reserved, licences.min_unit, licences.max_unit) == (0, 1, 2147483647)
    assert "CUSTOM_MEMORY_BANDWIDTH" in config.entries[2].inventories
