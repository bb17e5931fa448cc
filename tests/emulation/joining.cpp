/// @file
/// How ranks find each other: at the start, and when a communicator is split.

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "api.hpp"
#include "communicator.hpp"

namespace emulation {
namespace {

/// Ranks with the same one share a machine; NCCL_HOSTID stands for it where it is set, as with NCCL.
std::uint64_t host_number() noexcept {
  std::array<char, 256> name{};
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
  helpers_running_.store(1);
  helpers_.emplace_back([this, id] {
    join(id);
    helpers_running_.store(0);
    ring(bell_);
  });
}

void Communicator::join(const ncclUniqueId& id) {
  if (never_completes_) return hang();
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
  own().host = host_number();
  own().joined.store(2);
  ring_ranks();
  if (!wait_for_all([](RankCell& cell) { return cell.joined.load() == 2; })) return;
  close_segment(id);
  for (int rank = 0; rank < size_ && !may_share_devices(); ++rank) {
    if (rank == rank_ || cell(rank).host != own().host || cell(rank).device != own().device) continue;
    return fail(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(rank_) + " and rank " +
                                      std::to_string(rank) + " both on CUDA device " + std::to_string(own().device));
  }
  set_state(ncclSuccess);
}

bool Communicator::agree_on_split(Communicator* child, int color, int key, std::uint32_t round, ncclUniqueId& id) {
  bool is_given_up = false;
  const auto for_all = [&](auto condition) {
    return wait_for_ranks([&] {
             is_given_up = child != nullptr && child->is_aborted();
             for (int rank = 0; rank < size_ && !is_given_up; ++rank) {
               if (!condition(cell(rank))) return false;
             }
             return true;
           }) &&
           !is_given_up;
  };
  if (!for_all([&](RankCell& cell) { return cell.split_read.load() >= round - 1; })) return false;
  own().color = color;
  own().key = key;
  own().split_asked.store(round);
  ring_ranks();
  if (!for_all([&](RankCell& cell) { return cell.split_asked.load() >= round; })) return false;
  std::vector<std::pair<int, int>> members;  // key, rank
  for (int rank = 0; rank < size_; ++rank) {
    if (cell(rank).color == color) members.emplace_back(cell(rank).key, rank);
  }
  std::sort(members.begin(), members.end());
  bool is_agreed = true;
  if (child != nullptr) {
    const int leader = members.front().second;
    if (leader == rank_) {
      is_agreed = make_segment(own().child);
      own().split_made.store(round);
      ring_ranks();
    }
    is_agreed = is_agreed && for_all([&](RankCell& cell) {
                  return &cell != &this->cell(leader) || cell.split_made.load() >= round;
                });
    if (is_agreed) id = cell(leader).child;
    child->rank_ = static_cast<int>(std::find(members.begin(), members.end(), std::pair(key, rank_)) - members.begin());
    child->size_ = static_cast<int>(members.size());
  }
  own().split_read.store(round);
  ring_ranks();
  return is_agreed;
}

void Communicator::begin_split(Communicator& parent, Communicator* child, int color, int key) {
  const std::uint32_t round = ++parent.splits_;
  parent.helpers_running_.fetch_add(1);
  if (child != nullptr) child->helpers_running_.store(1);
  parent.references_.fetch_add(1, std::memory_order_relaxed);
  auto work = [&parent, child, color, key, round] {
    ncclUniqueId id{};
    const bool agreed = parent.agree_on_split(child, color, key, round, id);
    parent.helpers_running_.fetch_sub(1);
    ring(parent.bell_);
    parent.unreference();
    if (child == nullptr) return;
    if (agreed)
      child->join(id);
    else
      child->fail(ncclRemoteError, "the split was not completed");
    child->helpers_running_.store(0);
    ring(child->bell_);
  };
  (child == nullptr ? parent : *child).helpers_.emplace_back(std::move(work));
}

}  // namespace emulation
