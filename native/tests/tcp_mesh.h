// Sockets between ranks of one process: TCP over the loopback interface, every pair connected.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <tuple>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "tests/check.h"

namespace khorovod::testing {

// `buffer_bytes` shrinks the sockets' buffers, so that transfers stop and go; 0: as the kernel
// likes.
inline std::pair<UniqueFd, UniqueFd> tcp_pair(int buffer_bytes = 0) {
  const auto make_socket = [&] {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (buffer_bytes > 0) {
      ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
      ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
    }
    return fd;
  };
  const UniqueFd listener = make_socket();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  CHECK_EQ(::bind(listener.get(), any, length), 0);
  CHECK_EQ(::listen(listener.get(), 1), 0);
  CHECK_EQ(::getsockname(listener.get(), any, &length), 0);
  UniqueFd one = make_socket();
  CHECK_EQ(::connect(one.get(), any, length), 0);
  UniqueFd other(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  CHECK(static_cast<bool>(other));
  return {std::move(one), std::move(other)};
}

// A socket for every pair of ranks: mesh[r][p] is rank r's end of its connection with rank p.
using Mesh = std::vector<std::vector<UniqueFd>>;

inline Mesh make_tcp_mesh(int size, int buffer_bytes = 0) {
  const auto n = static_cast<std::size_t>(size);
  Mesh mesh(n);
  for (auto& row : mesh) row.resize(n);
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = a + 1; b < n; ++b) {
      std::tie(mesh[a][b], mesh[b][a]) = tcp_pair(buffer_bytes);
    }
  }
  return mesh;
}

}  // namespace khorovod::testing
