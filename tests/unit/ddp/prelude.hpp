#pragma once
/// @file
/// The headers and names that most tests of ddp/ use.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "dtrain/core/deadline.hpp"
#include "dtrain/ddp/agreement/model_signature.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/reduction/bucket_rebuild.hpp"
#include "dtrain/ddp/reduction/reducer.hpp"
#include "dtrain/stream/host/stream_ref.hpp"
#include "support/captured_stderr.hpp"
#include "support/counting_communicator.hpp"
#include "support/fake_communicator.hpp"
#include "support/fake_group_handle.hpp"
#include "support/fake_store.hpp"
#include "support/prelude.hpp"
#include "support/skip.hpp"
#include "support/temporary_directory.hpp"
#include "unit/ddp/agreement/two_layers.hpp"
#include "unit/ddp/fake_rank.hpp"

using namespace ddp_test;
using namespace dtrain::ddp;
using dtrain::Deadline;
using dtrain::DType;
using dtrain::Errc;
using dtrain::Error;
using dtrain::Parameter;
using dtrain::Step;
using dtrain::tensor_view;
using support::FakeJob;
using support::FakeStore;
using support::TemporaryFile;
