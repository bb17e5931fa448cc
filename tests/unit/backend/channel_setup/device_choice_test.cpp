#include "dtrain/backend/channel_setup/device_choice.hpp"
#include "unit/backend/prelude.hpp"

namespace {

using dtrain::backend::choose_device;
using dtrain::backend::DeviceChoice;
using dtrain::backend::DeviceFacts;

constexpr auto unknown = std::nullopt;

struct Row {
  DeviceFacts facts;
  int index;            ///< -1: refused
  const char* mention;  ///< of the refusal
};

const Row rows[] = {
    {{0, 1, 1, false}, 0, ""},
    {{3, 4, 1, false}, 0, ""},  // each rank is shown its own; two that see the same are compared later
    {{unknown, unknown, 1, false}, 0, ""},
    {{0, 4, 4, false}, 0, ""},
    {{3, 4, 4, false}, 3, ""},
    {{1, 2, 8, false}, 1, ""},
    {{2, unknown, 4, false}, 2, ""},
    {{unknown, 4, 4, false}, -1, "LOCAL_RANK"},
    {{unknown, unknown, 2, true}, -1, "LOCAL_RANK"},
    {{0, 4, 2, false}, -1, "rank 0 of the 4 on this node finds 2 devices"},
    {{0, 3, 2, false}, -1, "rank 0 of the 3"},  // not the last rank alone
    {{3, 4, 2, false}, -1, "DTRAIN_SHARE_DEVICES=1"},
    {{4, unknown, 4, false}, -1, "rank 4 of the 5"},
    {{0, 4, 2, true}, 0, ""},
    {{3, 4, 2, true}, 1, ""},
    {{2, 8, 3, true}, 2, ""},
    {{7, 8, 3, true}, 1, ""},
    {{0, 1, 0, false}, -1, "no CUDA device is visible"},
    {{0, 1, 0, true}, -1, "CUDA_VISIBLE_DEVICES"},
};

}  // namespace

TEST_CASE(
    "a rank takes the only visible device, else the one of its local rank, and shares only where it was asked to") {
  for (const Row& row : rows) {
    const DeviceChoice choice = choose_device(row.facts);
    CAPTURE(row.facts.local_rank.value_or(-1));
    CAPTURE(row.facts.local_world_size.value_or(-1));
    CAPTURE(row.facts.visible);
    CHECK(choice.index == row.index);
    CHECK(choice.refusal.empty() == (row.index >= 0));
    CHECK_CONTAINS(choice.refusal, row.mention);
  }
}
