"""Children that call Horovod, or hold on to what a rank has open: refused with a clear error, and harmless.

``test_fork.py`` has plain forks; here are pools from before ``init()``, threads that fork, programs that
inherit everything, and workers that outlive the world.
"""

from __future__ import annotations

import pytest
from jobs import Start

METHODS = pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])

# What a child tells of itself. In a spawned one this module is imported again, as __mp_main__.
CHILD = """
import multiprocessing as mp
import subprocess

def error_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None

def handles():
    '''Descriptors of the kinds that an engine has.'''
    kinds = ("socket:", "anon_inode:[eventfd]", "anon_inode:[pidfd]", "anon_inode:[timerfd]", "memfd:")
    found = []
    for name in os.listdir("/proc/self/fd"):
        try: link = os.readlink(f"/proc/self/fd/{name}")
        except OSError: continue
        if any(kind in link for kind in kinds): found.append(link)
    return found

def call_everything(_):
    return [error_of(call) for call in (hvd.rank, lambda: hvd.allreduce(np.ones(3)), hvd.init)]

def answer(number):
    return number * number, [link for link in handles() if not link.startswith("socket:")]
"""

POOL = (
    CHILD
    + """
if __name__ == "__main__":
    context = mp.get_context(os.environ["METHOD"])
    if os.environ["WHEN"] == "before init":
        pool = context.Pool(1)
        pool.apply(answer, (3,))
        hvd.init()
    else:
        hvd.init()
        pool = context.Pool(1)
    answers = pool.map_async(call_everything, range(2))
    reduce_forever(limit=30)
    while not answers.ready(): time.sleep(0.01)
    hvd.barrier()  # every rank lives until all children have called
    reduce_forever(limit=5)
    for calls in answers.get(): tell(calls=calls)
    pool.close()
    pool.join()
"""
)


@METHODS
@pytest.mark.parametrize("when", ["before init", "after init"])
def test_workers_that_call_horovod(start: Start, method: str, when: str) -> None:
    job = start(2, POOL, {"METHOD": method, "WHEN": when, "HOROVOD_START_TIMEOUT": "50"})
    for rank in job.ranks:
        rank.assert_quiet_exit()
        assert len(rank.told()) == 2
        for told in rank.told():
            who, allreduce, init = told["calls"]
            assert who.startswith("NotInitializedError: ")
            assert allreduce.startswith("NotInitializedError: ")
            if method == "fork" and when == "after init":
                assert init.startswith("NotInitializedError: ")
                assert "forked child" in init
            else:  # it bears the rank's name, and says so: at once, long before the start timeout
                assert init.startswith("InitError: ")
                assert "HOROVOD_RANK" in init


THREAD = (
    CHILD
    + """
hvd.init()
def breed():
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            tell(calls=call_everything(0), handles=handles())
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    flag(f"bred.{RANK}")
thread = threading.Thread(target=breed)
thread.start()
reduce_forever(limit=40)
await_flag("bred.0"); await_flag("bred.1")
thread.join()
reduce_forever(limit=5)
"""
)


def test_forks_of_a_thread_call_horovod(start: Start, plane: dict[str, str]) -> None:
    job = start(2, THREAD, plane)
    for rank in job.ranks:
        rank.assert_quiet_exit()
        assert len(rank.told()) == 3
        for told in rank.told():
            assert [error.partition(":")[0] for error in told["calls"]] == ["NotInitializedError"] * 3
            assert told["handles"] == []


OUTLIVES = (
    CHILD
    + """
if __name__ == "__main__":
    hvd.init()
    reduce_forever(limit=3)
    pool = mp.get_context(os.environ["METHOD"]).Pool(2)
    first = pool.map(answer, range(4))
    hvd.shutdown()
    between = pool.map(answer, range(4))
    hvd.init()
    reduce_forever(limit=3)
    last = pool.map(answer, range(4))
    hvd.shutdown()
    after = pool.map(answer, range(4))
    assert [[square for square, _ in found] for found in (first, between, last, after)] == [[0, 1, 4, 9]] * 4
    tell(kept=[links for found in (first, between, last, after) for _, links in found if links])
    pool.close()
    pool.join()
"""
)


@METHODS
def test_a_pool_outlives_its_world(start: Start, method: str) -> None:
    """As a loader's workers do: they work on through shutdown() and another init(), and keep nothing."""
    job = start(2, OUTLIVES, {"METHOD": method})
    for rank in job.ranks:
        rank.assert_quiet_exit()
        assert rank.told() == [{"kept": []}]


PROGRAM = (
    CHILD
    + """
if len(sys.argv) > 1:
    tell(handles=handles(), error=error_of(hvd.init))
    sys.exit(0)
hvd.init()
children = [subprocess.Popen([sys.executable, __file__, "child"], close_fds=False) for _ in range(2)]
reduce_forever(limit=30)
assert [child.wait(50) for child in children] == [0, 0]
hvd.barrier()
reduce_forever(limit=5)
"""
)


def test_programs_that_inherit_all_descriptors(start: Start, plane: dict[str, str]) -> None:
    job = start(2, PROGRAM, {**plane, "HOROVOD_START_TIMEOUT": "50"})
    for rank in job.ranks:
        rank.assert_quiet_exit()
        assert len(rank.told()) == 2
        for told in rank.told():
            assert told["handles"] == []
            assert told["error"].startswith("InitError: ")
            assert "HOROVOD_RANK" in told["error"]


NESTED = """
import subprocess
INNER = '''
import numpy as np, horovod.numpy as hvd
hvd.init()
print("inner", hvd.rank(), hvd.size(), hvd.allreduce(np.ones(1000), op=hvd.Sum)[0])
'''
hvd.init()
command = [sys.executable, "-m", "horovod.runner.cli", "-np", "2", sys.executable, "-c", INNER]
inner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
reduce_forever(limit=30)
said = inner.communicate(timeout=55)[0]
hvd.barrier()
tell(code=inner.returncode, said=sorted(said.splitlines()))
"""


def test_a_horovodrun_inside_of_a_rank(start: Start) -> None:
    job = start(2, NESTED)
    for rank in job.ranks:
        rank.assert_quiet_exit()
        (told,) = rank.told()
        assert told == {"code": 0, "said": [f"[{r}]<stdout>:inner {r} 2 2.0" for r in range(2)]}
