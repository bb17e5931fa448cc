#pragma once
/// @file
/// The headers and names that most tests of launch/ use.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>

#include "dtrain/identity/resolve_identity.hpp"
#include "dtrain/launch/configuration/flags.hpp"
#include "dtrain/launch/configuration/job_identity.hpp"
#include "dtrain/launch/configuration/settings.hpp"
#include "dtrain/launch/nodes/job_result.hpp"
#include "dtrain/launch/output/output_relay.hpp"
#include "dtrain/launch/rank_process.hpp"
#include "dtrain/launch/supervise/spawn.hpp"
#include "support/limited_child.hpp"
#include "support/machine_files.hpp"
#include "support/prelude.hpp"
#include "support/program.hpp"
#include "support/temporary_directory.hpp"

using namespace dtrain::launch;
using dtrain::Cause;
using dtrain::CauseKind;
using dtrain::Cpus;
using dtrain::Deadline;
using dtrain::identity::Environment;
using dtrain::identity::Variables;
using std::chrono::milliseconds;
using support::contains;
using support::Machine;
using support::TemporaryFile;

using Words = std::vector<std::string>;
