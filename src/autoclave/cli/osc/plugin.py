"""The openstackclient extension. It adds names and overrides none: which of two would win is luck."""

import argparse
from typing import Any

DEFAULT_API_VERSION = "1"
API_VERSION_OPTION = "os_autoclave_api_version"
API_NAME = "autoclave"
API_VERSIONS = {"1": "autoclave.cli.osc.plugin"}


def make_client(instance: Any) -> Any:
    """The accelerator proxy of openstacksdk, with the caller's credentials."""
    return instance.sdk_connection.accelerator


def build_option_parser(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """openstackclient asks for the extension's global options."""
    parser.add_argument(
        "--os-autoclave-api-version",
        metavar="<autoclave-api-version>",
        default=DEFAULT_API_VERSION,
        help=f"Autoclave's own API version (default {DEFAULT_API_VERSION})",
    )
    return parser
