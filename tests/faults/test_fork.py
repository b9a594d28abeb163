"""Forked, spawned and started children of a rank: they are no ranks, and never disturb the job."""

from __future__ import annotations

import signal

import pytest
from jobs import Start

CALLS = """
CALLS = {
    "rank": hvd.rank,
    "allreduce": lambda: hvd.allreduce(np.ones(3)),
    "allreduce_async": lambda: hvd.allreduce_async(np.ones(3)),
    "broadcast": lambda: hvd.broadcast(np.ones(3), 0),
    "barrier": hvd.barrier,
    "synchronize": lambda: hvd.synchronize(1),
    "poll": lambda: hvd.poll(1),
    "init": hvd.init,
}
"""

REFUSED = (
    CALLS
    + """
hvd.init()
hvd.allreduce(np.ones(3), name="warm")
pid = os.fork()
if pid == 0:
    assert not hvd.is_initialized()
    tell_error(CALLS[os.environ["CALL"]])
    hvd.shutdown()  # as harmless as before init()
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
reduce_forever(limit=5)
"""
)


@pytest.mark.parametrize(
    "call", ["rank", "allreduce", "allreduce_async", "broadcast", "barrier", "synchronize", "poll", "init"]
)
def test_a_forked_child_is_refused(start: Start, call: str) -> None:
    job = start(2, REFUSED, {"CALL": call})
    for rank in job.ranks:
        rank.assert_quiet_exit()
        (told,) = rank.told()
        assert told["error"] == "NotInitializedError"
        assert "forked child" in told["message"]


GRANDCHILD = """
hvd.init()
engine = runtime.engine()
pid = os.fork()
if pid == 0:
    tell_error(engine.allreduce, "x", np.ones(3), np.ones(3), 1, 1.0, 1.0)  # a reference from before the fork
    inner = os.fork()
    if inner == 0:
        tell_error(hvd.barrier)
        sys.exit(0)
    os.waitpid(inner, 0)
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
reduce_forever(limit=5)
"""


def test_grandchildren_and_old_references(start: Start) -> None:
    job = start(2, GRANDCHILD)
    for rank in job.ranks:
        rank.assert_quiet_exit()
        old, grandchild = rank.told()
        assert old["error"] == "EngineShutdownError"
        assert "forked child" in old["message"]
        assert grandchild["error"] == "NotInitializedError"


IN_FLIGHT = """
hvd.init()
stop = threading.Event()
children = []

def breed():
    while not stop.is_set():
        pid = os.fork()
        if pid == 0:
            np.ones(1 << 16).sum()
            if len(children) % 2: os._exit(0)
            sys.exit(0)  # on the thread that forked: its end is the process's end
        children.append(os.waitpid(pid, 0)[1])
        flag(f"forked.{RANK}")

def run():
    if os.environ["FROM"] == "thread":
        thread = threading.Thread(target=breed)
        thread.start()
        reduce_forever(limit=60)
        await_flag(f"forked.{RANK}")
        stop.set()
        thread.join()
    else:
        tensors = [np.full(1 << 18, i, np.float32) for i in range(20)]
        handles = [hvd.allreduce_async(t, name=f"t{i}", op=hvd.Sum) for i, t in enumerate(tensors)]
        for _ in range(4):
            pid = os.fork()
            if pid == 0:
                sys.exit(0)
            children.append(os.waitpid(pid, 0)[1])
        for i, handle in enumerate(handles):
            assert np.all(hvd.synchronize(handle) == SIZE * i)

run()
assert children and not any(children), children
tell(children=len(children))
"""


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("source", ["main", "thread"])
def test_forks_while_operations_are_in_flight(start: Start, size: int, source: str) -> None:
    job = start(size, IN_FLIGHT, {"FROM": source})
    for rank in job.ranks:
        rank.assert_quiet_exit()
        assert rank.told()[0]["children"] > 0


MULTIPROCESSING = """
import multiprocessing as mp

def work(number):
    import horovod.numpy as child_hvd
    try:
        child_hvd.rank()
    except child_hvd.HorovodInternalError as error:
        return number * number, type(error).__name__
    return number, "a rank?"

if __name__ == "__main__":
    hvd.init()
    context = mp.get_context(os.environ["METHOD"])
    with context.Pool(2) as pool:
        answers = pool.map_async(work, range(6))
        reduce_forever(limit=30)
        assert answers.get(50) == [(n * n, "NotInitializedError") for n in range(6)]
        reduce_forever(limit=5)
    tell(done=True)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(start: Start, method: str) -> None:
    job = start(2, MULTIPROCESSING, {"METHOD": method})
    for rank in job.ranks:
        rank.assert_quiet_exit()
        assert rank.told() == [{"done": True}]


OUTLIVES = """
hvd.init()
reduce_forever(limit=3)
if RANK == 1:
    if os.fork() == 0:
        flag("child")
        time.sleep(60)
        os._exit(0)
    await_flag("child")
    sys.exit(0)
tell_error(hvd.barrier)
"""


def test_a_child_that_outlives_its_parent_does_not_keep_the_world(start: Start) -> None:
    job = start(2, OUTLIVES)
    job[1].assert_quiet_exit()
    job[0].assert_quiet_exit()
    (told,) = job[0].told()
    assert told["error"] == "PeerLostError"
    assert f"rank 1 (host testhost, pid {job[1].pid}) has shut down" in told["message"]
    assert len(job.processes()) == 1


DYING_CHILDREN = """
hvd.init()
for signum in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM):
    pid = os.fork()
    if pid == 0:
        import resource
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), signum)
        time.sleep(60)
    reduce_forever(limit=5)
    status = os.waitpid(pid, 0)[1]
    assert os.WTERMSIG(status) == signum, status
tell(done=True)
"""


def test_children_that_are_killed_do_not_matter(start: Start) -> None:
    job = start(2, DYING_CHILDREN)
    for rank in job.ranks:
        rank.wait()
        assert rank.told() == [{"done": True}], rank.err()


SUBPROCESS = """
import subprocess
if len(sys.argv) > 1:
    tell_error(hvd.init)
    sys.exit(0)
hvd.init()
if RANK == int(os.environ["WHO"]) % SIZE or os.environ["WHO"] == "all":
    child = subprocess.Popen([sys.executable, __file__, "child"])
    reduce_forever(limit=30)
    assert child.wait(40) == 0
else:
    reduce_forever(limit=30)
reduce_forever(limit=30)
hvd.barrier()
"""


@pytest.mark.parametrize("who", ["0", "1"])
def test_a_subprocess_that_inherits_the_rank_is_refused(start: Start, who: str) -> None:
    job = start(2, SUBPROCESS, {"WHO": who})
    for rank in job.ranks:
        rank.assert_quiet_exit()
    (told,) = job[int(who)].told()
    assert told["error"] == "InitError"
    assert f"rank {who}" in told["message"].lower()
    assert "HOROVOD_RANK" in told["message"]
    assert not job[1 - int(who)].told()


AFTER_EXIT = """
def bye(): tell(atexit=os.getpid() == parent)
parent = os.getpid()
atexit.register(bye)
hvd.init()
pid = os.fork()
if pid == 0:
    sys.exit(0)  # runs the inherited atexit handlers, ours too
assert os.waitpid(pid, 0)[1] == 0
reduce_forever(limit=10)
"""


def test_atexit_handlers_of_children(start: Start) -> None:
    job = start(2, AFTER_EXIT)
    for rank in job.ranks:
        rank.assert_quiet_exit()
        assert [fact["atexit"] for fact in rank.told()] == [False, True]


WORLD_OF_ONE = """
hvd.init()
pid = os.fork()
if pid == 0:
    tell_error(hvd.allreduce, np.ones(3))
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert hvd.allreduce(np.ones(3))[0] == 1
"""


def test_a_world_of_one_forks(start: Start) -> None:
    job = start(1, WORLD_OF_ONE)
    job[0].assert_quiet_exit()
    assert job[0].told()[0]["error"] == "NotInitializedError"


DATA_LOADER = """
import torch.utils.data

class Squares(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, index): return torch.tensor([float(index) ** 2])

def main():
    hvd.init()
    loader = torch.utils.data.DataLoader(
        Squares(), batch_size=4, num_workers=2, multiprocessing_context=os.environ["METHOD"])
    total = 0.0
    for _ in range(2):
        for batch in loader:
            total += float(hvd.allreduce(batch.numpy(), op=hvd.Sum, name="batch").sum())
    assert total == 2 * SIZE * sum(i * i for i in range(64)), total
    tell(total=total)

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_torch_data_loader(start: Start, method: str) -> None:
    pytest.importorskip("torch")
    job = start(2, DATA_LOADER, {"METHOD": method})
    for rank in job.ranks:
        rank.assert_quiet_exit()
        assert len(rank.told()) == 1


ORPHANED = """
hvd.init()
if RANK == 1 and os.fork() == 0:
    flag("child")
    time.sleep(60)
    os._exit(0)
tell_error(reduce_forever)
hvd.shutdown()
os.environ.update(HOROVOD_SIZE="1", HOROVOD_LOCAL_SIZE="1")
hvd.init()
reduce = hvd.allreduce(np.ones(3), op=hvd.Sum)
tell(size=hvd.size(), sum=float(reduce[0]))
"""


def test_a_dead_ranks_child_does_not_hold_up_a_new_world(start: Start) -> None:
    job = start(2, ORPHANED)
    job.await_flags("child", "running.0", "running.1")
    job[1].kill()
    assert job[1].wait() == -signal.SIGKILL
    job[0].assert_quiet_exit()
    assert job[0].told()[1] == {"size": 1, "sum": 1.0}
    assert len(job.processes()) == 1
