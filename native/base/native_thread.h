// A thread of ours: it takes no signals (they belong to the program's own threads), has a name for
// debuggers, and is joined by its owner.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <functional>
#include <thread>

namespace khorovod {

inline std::thread start_native_thread(const char* name, std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  try {
    thread = std::thread(std::move(body));
  } catch (...) {  // no more threads or memory: the caller keeps its signals
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace khorovod
