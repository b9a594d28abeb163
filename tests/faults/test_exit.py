"""The end of a rank, in every order of pending work, threads, ``atexit`` and garbage: never a crash."""

from __future__ import annotations

import pytest
from jobs import Start

# Each is the end of rank 0's script, while rank 1 waits in a barrier that can never complete.
ENDINGS = {
    "nothing": "",
    "pending": """
hvd.allreduce_async(np.ones(1 << 16), name="a")
hvd.allreduce_async(np.ones(4), name="b")
""",
    "handles never synchronized": """
for i in range(100): hvd.allreduce_async(np.ones(1 << 10), name=f"a{i}")
time.sleep(0.05)
""",
    "callbacks pending": """
keep = []
for i in range(20): hvd.allreduce_async(np.ones(4), name=f"a{i}", callback=lambda error: keep.append(error))
""",
    "a callback that raises": """
def fail(error): raise ValueError("in a callback")
sys.unraisablehook = lambda info: flag("unraisable")
hvd.allreduce_async(np.ones(4), name="a", callback=fail)
""",
    "a callback that refers to everything": """
def call(error): (hvd, np, call, everything)
everything = {"call": call, "engine": runtime.engine()}
everything["self"] = everything
hvd.allreduce_async(np.ones(4), name="a", callback=call)
""",
    "cycles": """
class Array(np.ndarray): pass
class Node: pass
node = Node()
array = np.ones(1 << 10).view(Array)
array.node, node.array, node.me = node, array, node
node.engine, node.runtime = runtime.engine(), runtime.current()
node.handle = hvd.allreduce_async_(array, name="a")
del node, array
""",
    "cycles, collected first": """
class Array(np.ndarray): pass
array = np.ones(1 << 10).view(Array)
array.me, array.engine = array, runtime.engine()
hvd.allreduce_async_(array, name="a")
del array
gc.collect()
""",
    "gc disabled": """
gc.disable()
everything = [runtime.engine()]
everything.append(everything)
hvd.allreduce_async(np.ones(4), name="a")
""",
    "an engine in a global": "ENGINE = runtime.engine()",
    "an engine in builtins": "import builtins; builtins.engine = runtime.engine()",
    "an engine on a foreign module": "np.engine = runtime.engine()",
    "an engine in a class with __del__": """
class Holder:
    def __init__(self): self.engine = runtime.engine()
    def __del__(self): self.engine.shutdown(); self.engine.counters()
holder = Holder()
holder.me = holder
""",
    "shutdown": "hvd.shutdown()",
    "shutdown twice": "hvd.shutdown(); hvd.shutdown()",
    "shutdown with work pending": 'hvd.allreduce_async(np.ones(4), name="a"); hvd.shutdown()',
    "shutdown in atexit before ours": "atexit.register(hvd.shutdown)",
    "an allreduce in atexit after ours": "early.append(lambda: tell_error(hvd.allreduce, np.ones(3)))",
    "shutdown in atexit after ours": "early.append(hvd.shutdown)",
    "sys.exit": "sys.exit(0)",
    "sys.exit in a thread": """
thread = threading.Thread(target=lambda: sys.exit(3))
thread.start()
thread.join()
""",
    "shutdown in a thread": """
thread = threading.Thread(target=hvd.shutdown)
thread.start()
thread.join()
""",
    "shutdown in a daemon thread at the end": "threading.Thread(target=hvd.shutdown, daemon=True).start()",
    "init in a thread": """
hvd.shutdown()
os.environ.update(HOROVOD_SIZE="1", HOROVOD_LOCAL_SIZE="1")
thread = threading.Thread(target=hvd.init)
thread.start()
thread.join()
hvd.allreduce(np.ones(4))
""",
    "a daemon thread that waits": """
def wait():
    try: hvd.allreduce(np.ones(1 << 10), name="a")
    except errors.HorovodInternalError: pass
threading.Thread(target=wait, daemon=True).start()
time.sleep(0.05)
""",
    "many daemon threads that wait": """
def wait(i):
    flag(f"thread.{i}")
    hvd.allreduce(np.ones(1 << 10), name=f"a{i}")
threading.excepthook = lambda args: None
for i in range(8): threading.Thread(target=wait, args=(i,), daemon=True).start()
await_flag("thread.7")
time.sleep(0.05)
""",
    "a daemon thread that polls": """
handle = hvd.allreduce_async(np.ones(4), name="a")
def poll():
    try:
        while not hvd.poll(handle): pass
    except errors.NotInitializedError: pass
threading.Thread(target=poll, daemon=True).start()
""",
    "a thread that outlives main": """
def late():
    time.sleep(0.2)
    handle = hvd.allreduce_async(np.ones(4), name="a")
threading.Thread(target=late).start()
""",
    "modules deleted": """
handle = hvd.allreduce_async(np.ones(4), name="a")
for name in [n for n in sys.modules if n.startswith("horovod")]: del sys.modules[name]
del hvd, errors
gc.collect()
""",
    "modules imported twice": """
first = hvd
for name in [n for n in sys.modules if n.startswith("horovod") and "_native" not in n]: del sys.modules[name]
import horovod.numpy as second
assert second is not first and first.is_initialized() and not second.is_initialized()
""",
    "synchronized twice": """
handle = hvd.allreduce_async(np.ones(4), name="a")
hvd.shutdown()
tell_error(hvd.synchronize, handle)
""",
}

SCRIPT = """
hvd.init()
hvd.allreduce(np.ones(3), name="warm")
if RANK == 1:
    tell_error(hvd.barrier)
    sys.exit(0)
{ending}
"""

# atexit runs the last registered first: this is registered before horovod was imported.
BEFORE = """
import atexit
early = []
def run_early():
    for function in early: function()
atexit.register(run_early)
"""


@pytest.mark.parametrize("name", ENDINGS)
def test_an_end_while_the_other_waits(start: Start, name: str) -> None:
    job = start(2, SCRIPT.format(ending=ENDINGS[name]), before=BEFORE)
    job[0].assert_quiet_exit()
    job[1].assert_quiet_exit()
    (told,) = job[1].told()
    assert told["error"] == "PeerLostError"
    assert f"rank 0 (host testhost, pid {job[0].pid}) has shut down" in told["message"]


@pytest.mark.parametrize("name", [name for name in ENDINGS if "init" not in name])
def test_an_end_of_a_world_of_one(start: Start, name: str) -> None:
    job = start(1, SCRIPT.format(ending=ENDINGS[name]), before=BEFORE)
    job[0].assert_quiet_exit()


BOTH = """
hvd.init()
for step in range(3): hvd.allreduce(np.ones(1 << step), name="warm")
handles = [hvd.allreduce_async(np.ones(1 << 12), name=f"t{i}") for i in range(10)]
if os.environ["HOW"] == "synchronize":
    for handle in handles: hvd.synchronize(handle)
if os.environ["HOW"] == "shutdown" and RANK == 0:
    hvd.shutdown()
tell(done=True)
"""


@pytest.mark.parametrize("how", ["synchronize", "leave", "shutdown"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_end_at_once(start: Start, size: int, how: str) -> None:
    job = start(size, BOTH, {"HOW": how})
    for rank in job.ranks:
        rank.assert_quiet_exit()
        assert rank.told() == [{"done": True}]


LAST_WORDS = """
hvd.init()
result = hvd.allreduce(np.full(1 << 20, RANK + 1.0), op=hvd.Sum, name="last")
assert np.all(result == SIZE * (SIZE + 1) / 2)
"""


@pytest.mark.parametrize("size", [2, 3, 4])
def test_an_exit_after_the_last_result_takes_it_from_nobody(start: Start, size: int) -> None:
    job = start(size, LAST_WORDS)
    for rank in job.ranks:
        rank.assert_quiet_exit()


RAISE = """
hvd.init()
handle = hvd.allreduce_async(np.ones(4), name="a")
if RANK == 0:
    raise RuntimeError("at module level")
hvd.synchronize(handle)
tell_error(hvd.barrier)
"""


def test_an_exception_at_module_level(start: Start) -> None:
    job = start(2, RAISE)
    job[0].assert_no_crash()
    assert job[0].wait() == 1
    assert job[0].err().endswith("RuntimeError: at module level\n")
    job[1].wait()
    assert "crash" not in job[1].err()


IN_CALLBACK = """
hvd.init()
done = threading.Event()
def call(error):
    tell_error(getattr(hvd, os.environ["CALL"]))
    done.set()
handle = hvd.allreduce_async(np.ones(4), name="a", callback=call)
assert done.wait(20)
assert hvd.is_initialized()
hvd.synchronize(handle)
"""


@pytest.mark.parametrize("call", ["init", "shutdown"])
@pytest.mark.parametrize("size", [1, 2])
def test_no_init_and_no_shutdown_in_a_callback(start: Start, size: int, call: str) -> None:
    job = start(size, IN_CALLBACK, {"CALL": call})
    for rank in job.ranks:
        rank.assert_quiet_exit()
        (told,) = rank.told()
        assert told["error"] == "RuntimeError"
        assert f"{call}() was called in a callback" in told["message"]


SHUTDOWN_TWICE_AT_ONCE = """
hvd.init()
def call(error): tell_error(hvd.shutdown)
for i in range(4): hvd.allreduce_async(np.ones(4), name=f"never.{RANK}.{i}", callback=call)
hvd.shutdown()
tell(done=True)
"""


def test_callbacks_that_shut_down_during_a_shutdown(start: Start) -> None:
    job = start(2, SHUTDOWN_TWICE_AT_ONCE)
    for rank in job.ranks:
        rank.assert_quiet_exit()
        assert [fact.get("error") for fact in rank.told()] == ["RuntimeError"] * 4 + [None]


REFUSED = """
import weakref
class Call:
    def __call__(self, error): pass
hvd.init()
call = Call()
watch = weakref.ref(call)
hvd.allreduce_async(np.ones(4), name=f"twice.{RANK}")
tell_error(hvd.allreduce_async, np.ones(4), name=f"twice.{RANK}", callback=call)
del call
gc.collect()
assert watch() is None
"""


def test_the_callback_of_a_refused_operation_is_let_go(start: Start) -> None:
    job = start(2, REFUSED)
    for rank in job.ranks:
        rank.assert_quiet_exit()
        assert rank.told()[0]["error"] == "ValueError"


REPEATED = """
for generation in range(int(os.environ["TIMES"])):
    hvd.init()
    handle = hvd.allreduce_async(np.full(8, RANK), op=hvd.Sum, name="x")
    if generation % 2:
        assert hvd.synchronize(handle)[0] == SIZE * (SIZE - 1) // 2
    hvd.shutdown()
tell(open=len(os.listdir("/proc/self/fd")), threads=threading.active_count())
"""


@pytest.mark.parametrize("size", [1, 2, 3])
def test_worlds_that_come_and_go_leave_nothing(start: Start, size: int) -> None:
    job = start(size, REPEATED, {"TIMES": "40"})
    for rank in job.ranks:
        rank.assert_quiet_exit()
        (told,) = rank.told()
        assert told["open"] < 12
