/// @file
/// How ranks find each other: at the start, and when a communicator is split.

#include <unistd.h>

#include <functional>
#include <string_view>

#include "api.hpp"
#include "communicator.hpp"
#include "delays.hpp"
#include "network.hpp"

namespace emulation {
namespace {

/// Ranks with the same one share a machine; NCCL_HOSTID stands for it where it is set, as with NCCL.
std::uint64_t host_number(int device) noexcept {
  std::array<char, 256> name{};
  if (const int host = host_of(physical_device(device)); host >= 0) return static_cast<std::uint64_t>(host);
  if (const char* wanted = std::getenv("NCCL_HOSTID")) return std::hash<std::string_view>{}(wanted);
  ::gethostname(name.data(), name.size() - 1);
  return std::hash<std::string_view>{}(name.data());
}

bool may_share_devices() noexcept {
  const char* text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return text != nullptr && std::strcmp(text, "1") == 0;
}

}  // namespace

void Communicator::begin_init(const ncclUniqueId& id) {
  begin([this, id] { join(id); }, [] {});
}

void Communicator::join(const ncclUniqueId& id) {
  if (never_completes_) return hang();
  static std::atomic<bool> has_communicator{false};
  if (!has_communicator.exchange(true, std::memory_order_relaxed)) delay(Slow::first_communicator, device_);
  segment_ = map_segment(id);
  if (segment_ == nullptr) return fail(ncclSystemError, "the process that made the unique id cannot be reached");
  std::int32_t agreed = 0;
  if (!segment_->size.compare_exchange_strong(agreed, size_) && agreed != size_) {
    return fail(ncclInvalidUsage, "ranks with different world sizes use one unique id");
  }
  std::uint32_t free = 0;
  if (!own().joined.compare_exchange_strong(free, 1)) {
    return fail(ncclInvalidUsage, "two ranks with one number use one unique id");
  }
  own().process = ::getpid();
  own().device = physical_device(device_);
  own().host = host_number(device_);
  own().joined.store(2);
  notify_ranks();
  if (!wait_for_all([](RankCell& cell) { return cell.joined.load() == 2; })) return;
  close_segment(id);
  for (int rank = 0; rank < size_ && !may_share_devices(); ++rank) {
    if (rank == rank_ || cell(rank).host != own().host || cell(rank).device != own().device) continue;
    return fail(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(rank_) + " and rank " +
                                      std::to_string(rank) + " both on CUDA device " + std::to_string(own().device));
  }
  for (int rank = 0; rank < size_; ++rank)
    uses_network_ = uses_network_ || cell(rank).host != own().host;
  connected_.store(true);
  if (init_is_to_fail(device_)) return fail(ncclSystemError, "a network port that a test took away");
  set_state(ncclSuccess);
}

bool Communicator::agree_on_split(Communicator* child, int color, int key, std::uint32_t round, ncclUniqueId& id) {
  // The last split's words have been read by all.
  if (!wait_for_all([&](RankCell& cell) { return cell.split_read.load() >= round - 1; })) return false;
  own().color = color;
  own().key = key;
  own().split_asked.store(round);
  notify_ranks();
  if (!wait_for_all([&](RankCell& cell) { return cell.split_asked.load() >= round; })) return false;
  if (child != nullptr && !child->take_part(*this, round, id)) return false;
  own().split_read.store(round);
  notify_ranks();
  return true;
}

bool Communicator::take_part(Communicator& parent, std::uint32_t round, ncclUniqueId& id) {
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int rank = 0; rank < parent.size_; ++rank) {
    if (parent.cell(rank).color == parent.own().color) members.emplace_back(parent.cell(rank).key, rank);
  }
  std::sort(members.begin(), members.end());
  const auto self = std::find(members.begin(), members.end(), std::pair(parent.own().key, parent.rank_));
  rank_ = static_cast<int>(self - members.begin());
  size_ = static_cast<int>(members.size());
  RankCell& leader = parent.cell(members.front().second);
  if (&leader == &parent.own()) {
    if (!make_segment(leader.child)) return false;
    leader.split_made.store(round);
    parent.notify_ranks();
  }
  if (!parent.wait_for_ranks([&] { return leader.split_made.load() >= round; })) return false;
  id = leader.child;
  return true;
}

void Communicator::begin_split(Communicator& parent, Communicator* child, ncclComm_t* handle, int color, int key) {
  const std::uint32_t round = ++parent.splits_;
  const bool has_work = parent.has_work();
  const auto made = std::make_shared<Communicator*>(nullptr);
  const auto write = [handle, made] {
    if (*made != nullptr) std::atomic_ref(*handle).store(reinterpret_cast<ncclComm_t>(*made));
  };
  const auto split = [&parent, child, made, write, color, key, round, has_work] {
    ncclUniqueId id{};
    if (has_work) parent.hang();  // as it may then: "there should not be any outstanding NCCL operations on the comm"
    const bool is_agreed = parent.agree_on_split(child, color, key, round, id);
    if (is_agreed && child != nullptr) {
      child->begin_init(id);
      *made = child;
      if (parent.is_blocking()) write();
    } else if (child != nullptr) {
      child->unreference();  // nobody has heard of it
    }
  };
  parent.begin(split, [write, is_late = !parent.is_blocking()] {
    if (is_late) write();
  });
}

void Communicator::begin_window(void* memory, std::atomic_ref<ncclWindow_t> window) {
  const std::uint32_t round = ++windows_;
  const auto meet = [this, memory, window, round] {
    own().windows_asked.store(round);
    notify_ranks();
    if (wait_for_all([round](RankCell& cell) { return cell.windows_asked.load() >= round; })) {
      window.store(static_cast<ncclWindow_t>(memory));
    }
  };
  begin(meet, [] {});
}

}  // namespace emulation
