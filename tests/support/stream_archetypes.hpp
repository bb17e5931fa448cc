#pragma once
/// @file
/// The least that models Event, ExternalEvent and Stream, and for each requirement a type that lacks only that.

#include "dtrain/stream/stream.hpp"

namespace archetype {

enum class EventLacks { nothing, polling, blocking, moving };

template <EventLacks Lack = EventLacks::nothing>
struct Event {
  Event() = default;
  Event(Event&&) requires(Lack != EventLacks::moving) = default;
  Event& operator=(Event&&) requires(Lack != EventLacks::moving) = default;
  bool is_complete() const noexcept requires(Lack != EventLacks::polling) { return true; }
  dtrain::stream::WaitResult block_until_complete(dtrain::Deadline) requires(Lack != EventLacks::blocking) {
    return dtrain::stream::WaitResult::complete;
  }
};

enum class ExternalEventLacks { nothing, polling, blocking, signalling, resetting, timed_out };

template <ExternalEventLacks Lack = ExternalEventLacks::nothing>
struct ExternalEvent {
  ExternalEvent() = default;
  ExternalEvent(const ExternalEvent&) = delete;  // pinned: streams keep its address
  bool is_complete() const noexcept requires(Lack != ExternalEventLacks::polling) { return true; }
  dtrain::stream::WaitResult block_until_complete(dtrain::Deadline) requires(Lack != ExternalEventLacks::blocking) {
    return dtrain::stream::WaitResult::complete;
  }
  void signal() noexcept requires(Lack != ExternalEventLacks::signalling) {}
  void reset() noexcept requires(Lack != ExternalEventLacks::resetting) {}
  bool timed_out() const noexcept requires(Lack != ExternalEventLacks::timed_out) { return false; }
};

enum class StreamLacks { nothing, event_type, recording, waiting, device, copying, external_wait };

template <StreamLacks Lack>
struct StreamEventType {
  using Event = archetype::Event<>;
  using ExternalEvent = archetype::ExternalEvent<>;
};
template <>
struct StreamEventType<StreamLacks::event_type> {
  using ExternalEvent = archetype::ExternalEvent<>;
};

template <StreamLacks Lack = StreamLacks::nothing>
struct Stream : StreamEventType<Lack> {
  Stream() = default;
  Stream(Stream&&) = default;
  Stream& operator=(Stream&&) = default;
  Stream(const Stream&) requires(Lack != StreamLacks::copying) = default;
  Stream& operator=(const Stream&) requires(Lack != StreamLacks::copying) = default;
  dtrain::Device device() const noexcept requires(Lack != StreamLacks::device) { return {}; }
  void record(archetype::Event<>&) requires(Lack != StreamLacks::recording) {}
  void wait(const archetype::Event<>&) requires(Lack != StreamLacks::waiting) {}
  void wait(archetype::ExternalEvent<>&, dtrain::Deadline) requires(Lack != StreamLacks::external_wait) {}
};

}  // namespace archetype
