"""Nobody waits for an answer of a helper that is dead."""

import select
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from oslo_privsep.comm import ClientChannel

from autoclave.hardware.privileged import wake_when_dead


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # how oslo.privsep's reader ends
@pytest.mark.parametrize("unread", [True, False], ids=["before it has read the request", "after it has read it"])
def test_a_request_to_a_helper_that_dies_fails(unread: bool) -> None:
    ours, helpers = socket.socketpair()
    channel = ClientChannel(ours)
    threading.Thread(target=wake_when_dead, args=(channel,), daemon=True).start()
    with ThreadPoolExecutor(1) as agent:
        request = agent.submit(channel.send_recv, ("a request",))
        select.select([helpers], [], [], 30)
        if not unread:
            helpers.recv(4096)

        helpers.close()

        with pytest.raises(OSError, match=r"reset by peer|Premature eof"):
            request.result(timeout=30)
    assert not channel.running
