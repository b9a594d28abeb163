"""One rank of one peer: joins its world, then runs the cases that the driver sends until told to stop.

It ends by itself when the driver dies: a thread sleeps on the driver's pidfd, which costs nothing.
"""

from __future__ import annotations

import argparse
import os
import select
import threading
import traceback

from benchmarks import procfs
from benchmarks.cases import CASES, Context
from benchmarks.control import Channel, ChannelClosed, Message, connect
from benchmarks.peers import by_name


def main() -> None:
    """Join, serve, leave."""
    parser = argparse.ArgumentParser(prog="benchmarks.worker")
    parser.add_argument("--peer", required=True)
    parser.add_argument("--directory", required=True, help="where the control socket is, and ranks may meet")
    parser.add_argument("--driver", required=True, type=int, help="the driver's pid")
    options = parser.parse_args()
    _die_with(options.driver)
    peer = by_name(options.peer)
    peer.load()
    before = procfs.memory()
    peer.connect(options.directory)
    growth = {key: value - before[key] for key, value in procfs.memory().items()}
    channel = connect(f"{options.directory}/control")
    channel.send({"rank": peer.rank, "size": peer.size, "pid": os.getpid()})

    def ready() -> None:
        channel.send({"ready": True})
        channel.receive()

    _serve(channel, Context(peer, ready, growth))
    peer.close()


def _serve(channel: Channel, context: Context) -> None:
    """Answer one case after another; an exception is the answer too, and ends the rank."""
    while True:
        try:
            message = channel.receive()
        except ChannelClosed:
            os._exit(1)
        if message["case"] == "exit":
            return
        try:
            answer: Message = {"result": CASES[message["case"]](**message["parameters"]).run(context)}
        except Exception:
            channel.send({"error": traceback.format_exc(limit=-3)})
            os._exit(1)
        channel.send(answer)


def _die_with(driver: int) -> None:
    descriptor = os.pidfd_open(driver)

    def watch() -> None:
        select.select([descriptor], [], [])
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="driver-watch").start()


if __name__ == "__main__":
    main()
