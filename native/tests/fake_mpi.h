// MPI for ranks that are threads: messages of one sender and tag in order, sends that are complete
// only when they are received, and nothing that moves unless somebody calls. Abandoned messages
// stay with the post office, as they do with MPI.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "tests/check.h"
#include "transport/message_passing.h"

namespace khorovod::testing {

class PostOffice {
 public:
  struct Message {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::size_t bytes = 0;
    bool done = false;
    bool cancelled = false;
    bool too_long = false;
  };
  using MessageRef = std::shared_ptr<Message>;
  using Way = std::tuple<int, int, int>;  // sender, receiver, tag

  MessagePassing::Request add(const Way& way, Message message) {
    const std::lock_guard lock(mutex_);
    const auto kept = std::make_shared<Message>(message);
    messages_[++last_] = kept;
    (message.from != nullptr ? sent_ : awaited_)[way].push_back(kept);
    return last_;
  }

  // As a rank calls: what it is to receive is matched now.
  int test(int rank, MessagePassing::Request request, bool& done, std::size_t& bytes) {
    const std::lock_guard lock(mutex_);
    for (auto& [way, receives] : awaited_) {
      if (std::get<1>(way) == rank) match(receives, sent_[way]);
    }
    const auto found = messages_.find(request);
    if (found == messages_.end()) return kNoRequest;
    const MessageRef message = found->second;
    done = message->done || message->cancelled;
    bytes = message->cancelled ? 0 : message->bytes;
    if (done) messages_.erase(found);
    return done && message->too_long ? kTooLong : 0;
  }

  int cancel(MessagePassing::Request request) {
    const std::lock_guard lock(mutex_);
    const auto found = messages_.find(request);
    if (found == messages_.end()) return kNoRequest;
    found->second->cancelled = !found->second->done;
    return 0;
  }

  void keep(std::unique_ptr<std::byte[]> memory) {
    const std::lock_guard lock(mutex_);
    kept_.push_back(std::move(memory));
  }

  std::size_t under_way() const {
    const std::lock_guard lock(mutex_);
    return messages_.size();
  }

  static constexpr int kTooLong = 15;
  static constexpr int kNoRequest = 7;

 private:
  static void match(std::vector<MessageRef>& receives, std::vector<MessageRef>& sends) {
    std::erase_if(receives, [](const MessageRef& one) { return one->cancelled; });
    std::size_t pairs = std::min(receives.size(), sends.size());
    for (std::size_t i = 0; i < pairs; ++i) {
      Message& receive = *receives[i];
      Message& send = *sends[i];
      receive.too_long = send.bytes > receive.bytes;
      receive.bytes = std::min(receive.bytes, send.bytes);
      if (receive.bytes > 0) std::memcpy(receive.to, send.from, receive.bytes);
      receive.done = send.done = true;
    }
    const auto count = static_cast<std::ptrdiff_t>(pairs);
    receives.erase(receives.begin(), receives.begin() + count);
    sends.erase(sends.begin(), sends.begin() + count);
  }

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<std::byte[]>> kept_;
  std::map<MessagePassing::Request, MessageRef> messages_;
  std::map<Way, std::vector<MessageRef>> sent_;
  std::map<Way, std::vector<MessageRef>> awaited_;
  MessagePassing::Request last_ = 0;
};

class FakeMpi : public MessagePassing {
 public:
  FakeMpi(int rank, std::shared_ptr<PostOffice> office) : rank_(rank), office_(std::move(office)) {}

  int start_send(const std::byte* from, std::size_t bytes, int peer, int tag,
                 Request& request) override {
    request = office_->add({rank_, peer, tag}, {.from = from, .bytes = bytes});
    return 0;
  }
  int start_receive(std::byte* to, std::size_t bytes, int peer, int tag,
                    Request& request) override {
    request = office_->add({peer, rank_, tag}, {.to = to, .bytes = bytes});
    return 0;
  }
  int test(Request& request, bool& done, std::size_t& bytes) override {
    return office_->test(rank_, request, done, bytes);
  }
  int cancel(Request& request) override { return office_->cancel(request); }
  void keep(std::unique_ptr<std::byte[]> memory) override { office_->keep(std::move(memory)); }
  std::string describe(int error) override {
    return error == PostOffice::kTooLong ? "message truncated" : "unknown error";
  }

 private:
  const int rank_;
  const std::shared_ptr<PostOffice> office_;
};

}  // namespace khorovod::testing
