#pragma once
/// @file
/// The headers and names that most tests of rendezvous/ use.

#include <sys/resource.h>
#include <sys/socket.h>

#include <deque>
#include <future>
#include <semaphore>
#include <variant>

#include "dtrain/async/when_all.hpp"
#include "dtrain/rendezvous/client/store.hpp"
#include "dtrain/rendezvous/membership/host_identity.hpp"
#include "dtrain/rendezvous/membership/origin.hpp"
#include "dtrain/rendezvous/protocol/codec.hpp"
#include "dtrain/rendezvous/server_state/job_state.hpp"
#include "support/captured_stderr.hpp"
#include "support/limited_child.hpp"
#include "support/open_descriptors.hpp"
#include "support/prelude.hpp"
#include "support/sanitized.hpp"
#include "unit/rendezvous/proxied_ranks.hpp"
#include "unit/rendezvous/raw_client.hpp"
#include "unit/rendezvous/server/recording_sink.hpp"
#include "unit/rendezvous/store_fixture.hpp"
#include "unit/rendezvous/store_job.hpp"

using namespace dtrain::rendezvous;
using namespace rendezvous_test;
using dtrain::Cause;
using dtrain::CauseKind;
using dtrain::Errc;
using dtrain::Error;
using dtrain::async::EventLoop;
using dtrain::async::Task;
using support::contains;
using support::open_descriptors;
using support::sentence_of;

using Strings = std::vector<std::string>;
