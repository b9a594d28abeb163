"""One rank of one peer: joins its world, then runs the cases that the driver sends until told to stop.

It ends by itself when the driver dies: a thread sleeps on the driver's pidfd, which costs nothing.
"""

from __future__ import annotations

import argparse
import os
import select
import threading
import traceback
from collections.abc import Callable

from benchmarks import procfs
from benchmarks.cases import CASES, Context, Ready, Result
from benchmarks.control import Channel, ChannelClosed, Message, connect
from benchmarks.peers import by_name


def main() -> None:
    """Join, serve, leave."""
    options = options_of("benchmarks.worker")
    die_with(options.driver)
    peer = by_name(options.peer)
    peer.load()
    before = procfs.memory()
    peer.connect(options.directory)
    growth = {key: value - before[key] for key, value in procfs.memory().items()}
    channel, ready = report_to(options.directory, peer.rank, peer.size)
    context = Context(peer, ready, growth)
    serve(channel, lambda message: CASES[message["case"]](**message["parameters"]).run(context))
    peer.close()


def options_of(program: str) -> argparse.Namespace:
    """What the driver says to a rank."""
    parser = argparse.ArgumentParser(prog=program)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--directory", required=True, help="where the control socket is, and ranks may meet")
    parser.add_argument("--driver", required=True, type=int, help="the driver's pid")
    return parser.parse_args()


def report_to(directory: str, rank: int, size: int) -> tuple[Channel, Ready]:
    """Tell the driver that this rank is there; returns the channel, and a way to meet the other ranks."""
    channel = connect(f"{directory}/control")
    channel.send({"rank": rank, "size": size, "pid": os.getpid()})

    def ready() -> None:
        channel.send({"ready": True})
        channel.receive()

    return channel, ready


def serve(channel: Channel, run: Callable[[Message], Result]) -> None:
    """Answer one case after another; an exception is the answer too, and ends the rank."""
    while True:
        try:
            message = channel.receive()
        except ChannelClosed:
            os._exit(1)
        if message["case"] == "exit":
            return
        try:
            answer: Message = {"result": run(message)}
        except Exception:
            channel.send({"error": traceback.format_exc(limit=-3)})
            os._exit(1)
        channel.send(answer)


def die_with(driver: int) -> None:
    """End when the driver does."""
    descriptor = os.pidfd_open(driver)

    def watch() -> None:
        select.select([descriptor], [], [])
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="driver-watch").start()


if __name__ == "__main__":
    main()
