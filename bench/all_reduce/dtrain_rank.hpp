#pragma once
/// @file
/// A rank of dtrain in all_reduce_bench: a program that is started as the policy says.

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "bench/all_reduce/limit.hpp"
#include "bench/all_reduce/measure.hpp"
#include "bench/launched.hpp"
#include "dtrain/dtrain.hpp"

namespace bench {

/// Memory as any program has it, from the system.
class ForeignMemory {
 public:
  explicit ForeignMemory(std::size_t bytes) : bytes_(bytes) {
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) {
      throw dtrain::errno_error("taking memory for the benchmark");
    }
  }
  ForeignMemory(const ForeignMemory&) = delete;
  ForeignMemory& operator=(const ForeignMemory&) = delete;
  ~ForeignMemory() { ::munmap(data_, bytes_); }
  std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
};

/// Carries out requests on a channel of its own.
template <class P>
class DtrainRank {
 public:
  /// @param bytes the most that a request's buffers take together
  DtrainRank(const dtrain::ProcessGroup<P>& group, std::size_t bytes)
      : group_(group),
        communicator_(dtrain::group::GroupAccess::of(group).open_channel("bench")),
        bound_(communicator_.allocate_blocking(bytes, dtrain::Deadline::after(group.timeout()))),
        foreign_(bytes) {}

  void serve(RequestSource& source) {
    for (Request request; source.next(request);) {
      try {
        source.answer(carry_out(request));
      } catch (const dtrain::Error& error) {
        if (error.code() != dtrain::make_error_code(dtrain::Errc::unsupported)) {
          throw;
        }
        source.answer(std::string("missing ") + error.what());
      }
    }
  }

 private:
  std::vector<Interval> carry_out(const Request& request) {
    const Pattern pattern(group_.rank(), group_.world_size(), request.dtype);
    const auto meet = [this] {
      communicator_.enqueue(dtrain::backend::Barrier{}, group_.stream());
      wait();
    };
    if (request.memory.starts_with("limit-")) {
      const std::string kernel = request.memory.substr(6);
      const std::vector<std::byte*> parts = parts_of(bound_.data(), group_.rank(), group_.world_size());
      std::vector<float*> buffers(parts.size());
      const auto share = [&](std::byte* buffer) {
        for (std::size_t rank = 0; rank < parts.size(); ++rank) {
          buffers[rank] = reinterpret_cast<float*>(parts[rank] + (buffer - bound_.data()));
        }
        limit_share(kernel, buffers.data(), request.bytes, group_.rank(), group_.world_size());
      };
      return measure(request, pattern, bound_.data(), iteration_, meet, share);
    }
    const dtrain::DType dtype = request.dtype == "f16"    ? dtrain::DType::f16
                                : request.dtype == "bf16" ? dtrain::DType::bf16
                                                          : dtrain::DType::f32;
    const auto reduce = [&](std::byte* buffer) {
      const dtrain::BufferView view{buffer, request.bytes / pattern.element_bytes(), dtype, {}};
      communicator_.enqueue(dtrain::backend::AllReduce{view, view, dtrain::ReduceOp::sum}, group_.stream());
      wait();
    };
    std::byte* const memory = request.memory == "bound" ? bound_.data() : foreign_.data();
    return measure(request, pattern, memory, iteration_, meet, reduce);
  }

  void wait() {
    dtrain::stream::host::Event event;
    group_.stream().record(event);
    const auto result = event.block_until_complete(dtrain::Deadline::after(group_.timeout()));
    group_.check();
    if (result != dtrain::stream::WaitResult::complete || communicator_.failure()) {
      throw dtrain::Error(dtrain::Errc::closed, "a reduction of the benchmark has failed");
    }
  }

  const dtrain::ProcessGroup<P>& group_;
  typename dtrain::ProcessGroup<P>::Communicator communicator_;
  typename dtrain::ProcessGroup<P>::Communicator::Allocation bound_;
  ForeignMemory foreign_;
  std::uint64_t iteration_ = 0;
};

/// main() of such a process; after a word that says that it is one, its arguments are the socket and the bytes.
template <class P>
int run_rank(int argc, char** argv) {
  const auto body = [](dtrain::ProcessGroup<P> group, dtrain::Arguments arguments) {
    if (arguments.size() < 4) {
      return 2;
    }
    RequestSource source(arguments[2], group.rank());
    DtrainRank<P>(group, std::stoull(arguments[3])).serve(source);
    return 0;
  };
  return dtrain::run<P>(argc, argv, body);
}

}  // namespace bench
