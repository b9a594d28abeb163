#include "transport/socket_io.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace khorovod {

namespace {

// Some kernels refuse more in one call.
constexpr std::size_t kMaxPieces = 1024;

msghdr message_of(const iovec* pieces, std::size_t count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces);
  message.msg_iovlen = std::min(count, kMaxPieces);
  return message;
}

bool not_now(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

void prepare_stream_socket(int fd) {
  ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // refused where it is not TCP
}

std::ptrdiff_t send_some(int fd, const iovec* pieces, std::size_t count) {
  const msghdr message = message_of(pieces, count);
  for (;;) {
    const ssize_t n = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) return n;
    if (not_now(errno)) return 0;
    if (errno != EINTR) return -errno;
  }
}

std::ptrdiff_t receive_some(int fd, const iovec* pieces, std::size_t count) {
  msghdr message = message_of(pieces, count);
  for (;;) {
    const ssize_t n = ::recvmsg(fd, &message, MSG_DONTWAIT);
    if (n > 0) return n;
    if (n == 0) return -ECONNRESET;
    if (not_now(errno)) return 0;
    if (errno != EINTR) return -errno;
  }
}

std::string describe_lost_connection(int error) {
  if (error == ECONNRESET || error == EPIPE) {
    return " closed its connection without saying goodbye: it died or was killed";
  }
  return " cannot be reached any more: " + std::system_category().message(error);
}

bool stream_delivered(int fd) {
  int domain = 0;
  socklen_t length = sizeof domain;
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) return true;
  if (domain == AF_UNIX) return true;  // a write puts bytes into the peer's own queue
  tcp_info info{};
  length = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return true;
  // Our FIN comes after all data: once it is acknowledged, so is everything.
  return info.tcpi_state == TCP_FIN_WAIT2 || info.tcpi_state == TCP_TIME_WAIT ||
         info.tcpi_state == TCP_CLOSE;
}

}  // namespace khorovod
