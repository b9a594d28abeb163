// Non-blocking input and output on connected stream sockets (TCP, or AF_UNIX in tests). The sockets
// come connected and authenticated; this knows nothing of what travels over them.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <string>

namespace khorovod {

// Never blocks, does not wait to coalesce small messages.
void prepare_stream_socket(int fd);

// How many bytes went out or came in; 0: none now; negative: the stream is over, -errno says why.
// A peer that closed counts as ECONNRESET: whether it did so in order, only a protocol can tell.
std::ptrdiff_t send_some(int fd, const iovec* pieces, std::size_t count);
std::ptrdiff_t receive_some(int fd, const iovec* pieces, std::size_t count);

// Completes "rank 2 (...)": what the end of a stream, by this (positive) errno, says of the peer.
std::string describe_lost_connection(int error);

// After shutdown(SHUT_WR): whether the peer's kernel has acknowledged all that was sent (or nothing
// more can be done for it), so that closing the socket destroys nothing. See TcpLink::leave.
bool stream_delivered(int fd);

}  // namespace khorovod
