#pragma once
/// @file
/// EmulatedDevices: the emulation as it begins, with some devices, for one test.

#include <doctest/doctest.h>

#include "emulation/emulation.hpp"

namespace support {

/// What a test sets in the emulation ends with it. Also shows that nobody called NCCL on one communicator from two
/// threads at once.
struct EmulatedDevices {
  explicit EmulatedDevices(int devices) {
    emulation::reset();
    emulation::set_device_count(devices);
  }
  EmulatedDevices(const EmulatedDevices&) = delete;
  EmulatedDevices& operator=(const EmulatedDevices&) = delete;
  ~EmulatedDevices() {
    CHECK(emulation::concurrent_calls() == 0);
    emulation::reset();
  }
};

}  // namespace support
