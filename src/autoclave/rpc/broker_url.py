"""``[DEFAULT] transport_url`` in what operators are told: never with its passwords."""

import re

from autoclave.exceptions import InvalidConfiguration

_PASSWORD = re.compile(r"((?://|,)[^:@/,]*:)[^/,]*@")


def shown(text: str) -> str:
    """A text, such as the URL, without the passwords in it."""
    return _PASSWORD.sub(r"\1***@", text)


def unusable(error: Exception) -> InvalidConfiguration:
    """What to raise where oslo.messaging refuses the URL.

    :param error: what it said; a ValueError if it could not even take the URL apart.
    """
    # A password with a slash ends where the port would be, and that is what a ValueError then shows.
    why = (
        "a port is no number, or a character of a user or password is not written as %XX, such as / as %2F"
        if isinstance(error, ValueError)
        else shown(str(error))
    )
    return InvalidConfiguration(
        f"cannot be used: {why}; write rabbit://user:password@host:5672/", option="[DEFAULT] transport_url"
    )
