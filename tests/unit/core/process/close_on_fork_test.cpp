#include "dtrain/core/process/close_on_fork.hpp"

#include <fcntl.h>

#include "unit/core/prelude.hpp"

namespace {

using dtrain::CloseOnForkDescriptor;
using support::in_child;

Descriptor open_null() {
  return Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

bool is_open(int descriptor) {
  return ::fcntl(descriptor, F_GETFD) >= 0;
}

TEST_CASE("a forked process does not have what is closed on fork, and its parent still has it") {
  CloseOnForkDescriptor first(open_null());
  const CloseOnForkDescriptor moved(std::move(first));
  CHECK(is_open(moved.get()));
  CHECK(in_child([&] { return is_open(moved.get()) ? 1 : 0; }) == 0);
  CHECK(is_open(moved.get()));
}

TEST_CASE("what is closed on fork is closed at its end, and in a forked process no other file of that number is") {
  std::optional<CloseOnForkDescriptor> owner(open_null());
  const int number = owner->get();
  CHECK(in_child([&] {
          const Descriptor other = open_null();  // gets the lowest number that is free
          const bool has_number = other.get() == number;
          owner.reset();
          return has_number && is_open(number) ? 0 : 1;
        }) == 0);
  owner.reset();
  CHECK_FALSE(is_open(number));
}

TEST_CASE("beyond the table's places a descriptor is an ordinary one") {
  std::vector<CloseOnForkDescriptor> all;
  for (std::size_t i = 0; i <= dtrain::detail::close_on_fork_table.size(); ++i) {
    all.emplace_back(open_null());
  }
  const int last = all.back().get();
  CHECK(in_child([&] { return is_open(last) ? 0 : 1; }) == 0);
  all.clear();
  CHECK_FALSE(is_open(last));
  const CloseOnForkDescriptor next(open_null());
  CHECK(in_child([&] { return is_open(next.get()) ? 1 : 0; }) == 0);
}

}  // namespace
