// Under what operations are matched and looked up: a process set and a name in it. A view: the name
// belongs to whatever the key stands for.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace khorovod {

struct OpKey {
  std::uint32_t set;
  std::string_view name;

  bool operator==(const OpKey&) const = default;
};

struct OpKeyHash {
  std::size_t operator()(const OpKey& key) const {
    return std::hash<std::string_view>{}(key.name) ^ (key.set * std::size_t{0x9e3779b97f4a7c15});
  }
};

}  // namespace khorovod
