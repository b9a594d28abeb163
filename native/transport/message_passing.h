// Messages between the ranks of a communicator, as MPI passes them: those of one sender and one tag
// arrive in the order in which they were sent. Behind it is an MPI library (mpi_library.h), or, in
// tests, ranks that are threads. Nothing blocks, and nothing moves unless it is called. One thread
// at a time may use it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace khorovod {

class MessagePassing {
 public:
  using Request = std::uint64_t;  // a message under way; what the bits mean is MPI's business

  virtual ~MessagePassing() = default;

  // All return 0 or an error, for `describe`. The memory is MPI's until the request is complete.

  // Complete when the receiver has begun to receive it and the memory may be used again.
  virtual int start_send(const std::byte* from, std::size_t bytes, int peer, int tag,
                         Request& request) = 0;
  virtual int start_receive(std::byte* to, std::size_t bytes, int peer, int tag,
                            Request& request) = 0;
  // Moves whatever can be moved. If `done`, the request is complete and used up; `bytes` is what
  // came, of a receive.
  virtual int test(Request& request, bool& done, std::size_t& bytes) = 0;
  // Asks that a receive be complete at once, without a message; it may have got one already.
  virtual int cancel(Request& request) = 0;
  // Takes memory of messages that may never be complete.
  virtual void keep(std::unique_ptr<std::byte[]> memory) = 0;
  virtual std::string describe(int error) = 0;
};

}  // namespace khorovod
