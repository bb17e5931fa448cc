#include "support/stream_archetypes.hpp"
#include "unit/stream/prelude.hpp"

namespace {

using archetype::EventLacks;
using archetype::ExternalEventLacks;
using archetype::StreamLacks;
namespace stream = dtrain::stream;

template <EventLacks Lack>
inline constexpr bool is_event = stream::Event<archetype::Event<Lack>>;
template <ExternalEventLacks Lack>
inline constexpr bool is_external_event = stream::ExternalEvent<archetype::ExternalEvent<Lack>>;
template <StreamLacks Lack>
inline constexpr bool is_stream = stream::Stream<archetype::Stream<Lack>>;

}  // namespace

TEST_CASE("an event is what can be polled, waited for and moved, and nothing less") {
  CHECK(is_event<EventLacks::nothing>);
  CHECK_FALSE(is_event<EventLacks::polling>);
  CHECK_FALSE(is_event<EventLacks::blocking>);
  CHECK_FALSE(is_event<EventLacks::moving>);
}

TEST_CASE("an external event is pinned and is polled, waited for, signalled and reset") {
  CHECK(is_external_event<ExternalEventLacks::nothing>);
  CHECK_FALSE(is_external_event<ExternalEventLacks::polling>);
  CHECK_FALSE(is_external_event<ExternalEventLacks::blocking>);
  CHECK_FALSE(is_external_event<ExternalEventLacks::signalling>);
  CHECK_FALSE(is_external_event<ExternalEventLacks::resetting>);
}

TEST_CASE("a stream records events, waits for them, names its device and is copied as a reference") {
  CHECK(is_stream<StreamLacks::nothing>);
  CHECK_FALSE(is_stream<StreamLacks::event_type>);
  CHECK_FALSE(is_stream<StreamLacks::recording>);
  CHECK_FALSE(is_stream<StreamLacks::waiting>);
  CHECK_FALSE(is_stream<StreamLacks::device>);
  CHECK_FALSE(is_stream<StreamLacks::copying>);
}

TEST_CASE("waiting for an external event is a further ability: a stream without it is still a stream") {
  CHECK(stream::CanWaitExternal<archetype::Stream<>>);
  CHECK_FALSE(stream::CanWaitExternal<archetype::Stream<StreamLacks::external_wait>>);
  CHECK(is_stream<StreamLacks::external_wait>);
}

TEST_CASE("each lack is named by one ability alone") {
  CHECK_FALSE(stream::CanPoll<archetype::Event<EventLacks::polling>>);
  CHECK(stream::CanBlock<archetype::Event<EventLacks::polling>>);
  CHECK_FALSE(stream::CanBlock<archetype::Event<EventLacks::blocking>>);
  CHECK(stream::CanPoll<archetype::Event<EventLacks::blocking>>);
  CHECK_FALSE(stream::CanRecord<archetype::Stream<StreamLacks::recording>>);
  CHECK(stream::CanWaitEvent<archetype::Stream<StreamLacks::recording>>);
  CHECK_FALSE(stream::CanWaitEvent<archetype::Stream<StreamLacks::waiting>>);
  CHECK(stream::CanRecord<archetype::Stream<StreamLacks::waiting>>);
  CHECK_FALSE(stream::HasDevice<archetype::Stream<StreamLacks::device>>);
  CHECK(stream::HasEvent<archetype::Stream<StreamLacks::device>>);
}
