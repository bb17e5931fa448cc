#pragma once
/// @file
/// The headers and names that most tests of core/ use.

#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "dtrain/core/crypto.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/process/control_groups.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/small_floats.hpp"
#include "support/in_child.hpp"
#include "support/prelude.hpp"
#include "support/temporary_directory.hpp"

using namespace dtrain;
