/// @file
/// Calls that make, ask and end communicators.

#include <climits>

#include "api.hpp"
#include "delays.hpp"
#include "group.hpp"

namespace emulation {

ncclResult_t nccl_admitted(const char* function) noexcept {
  const int refused = admitted(function);
  return refused < ncclNumResults ? static_cast<ncclResult_t>(refused) : ncclUnhandledCudaError;
}

}  // namespace emulation

using namespace emulation;

namespace {

bool is_valid(const ncclConfig_t& config) {
  const bool is_known = config.magic == 0xcafebeef && config.size >= sizeof(std::size_t) + 2 * sizeof(unsigned int);
  return is_known && (config.blocking == NCCL_CONFIG_UNDEF_INT || config.blocking == 0 || config.blocking == 1);
}

/// NCCL_COMM_BLOCKING, where it is 0 or 1, takes the place of what the program wants.
bool is_blocking(bool wanted) {
  const char* const text = std::getenv("NCCL_COMM_BLOCKING");
  if (text == nullptr || (std::strcmp(text, "0") != 0 && std::strcmp(text, "1") != 0)) return wanted;
  return *text == '1';
}

/// Takes over what the program has set.
void configure(Communicator& communicator, [[maybe_unused]] const ncclConfig_t* config) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 31, 0)
  if (config != nullptr && config->launchOrderImplicit != NCCL_CONFIG_UNDEF_INT) {
    communicator.set_orders_launches(config->launchOrderImplicit != 0);
  }
#else
  static_cast<void>(communicator);
#endif
}

ncclResult_t released(Communicator& ending) {
  const bool is_on_broken_device = is_broken(ending.device());
  ending.release();
  return is_on_broken_device ? ncclUnhandledCudaError : ncclSuccess;
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  if (const ncclResult_t refused = nccl_admitted("ncclGetVersion")) return refused;
  const char* const told = std::getenv("DTRAIN_EMULATED_NCCL");
  *version = told == nullptr ? NCCL_VERSION_CODE : std::atoi(told);
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (const ncclResult_t refused = nccl_admitted("ncclGetUniqueId")) return refused;
  return make_segment(*id) ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* communicator, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  *communicator = nullptr;
  if (const ncclResult_t refused = nccl_admitted("ncclCommInitRankConfig")) return refused;
  count_initialisation();
  if (size < 1 || size > most_ranks || rank < 0 || rank >= size) return ncclInvalidArgument;
  if (config != nullptr && !is_valid(*config)) return ncclInvalidArgument;
  if (device_count() == 0) return ncclUnhandledCudaError;
  const bool blocking = is_blocking(config == nullptr || config->blocking != 0);
  auto* const made = new Communicator(rank, size, current_device(), blocking);
  configure(*made, config);
  *communicator = handle_of(made);
  made->begin_init(id);
  return await_init(*made);
}

ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(communicator, size, id, rank, nullptr);
}

ncclResult_t ncclCommSplit(ncclComm_t communicator, int color, int key, ncclComm_t* child, ncclConfig_t* config) {
  if (const ncclResult_t refused = nccl_admitted("ncclCommSplit")) return refused;
  if (communicator == nullptr || child == nullptr || (color < 0 && color != NCCL_SPLIT_NOCOLOR)) {
    return ncclInvalidArgument;
  }
  Communicator& parent = *communicator_of(communicator);
  const InsideCall inside(parent);
  if (parent.polled() != ncclSuccess) return ncclInvalidArgument;
  if (config != nullptr && !is_valid(*config)) return ncclInvalidArgument;
  const bool inherits = config == nullptr || config->blocking == NCCL_CONFIG_UNDEF_INT;
  const bool blocking = is_blocking(inherits ? parent.is_blocking() : config->blocking != 0);
  Communicator* made = nullptr;
  if (color != NCCL_SPLIT_NOCOLOR) {
    made = new Communicator(0, 1, parent.device(), blocking);
    made->set_orders_launches(parent.orders_launches());
    configure(*made, config);
  }
  *child = nullptr;
  Communicator::begin_split(parent, made, child, color, key);
  if (!parent.is_blocking()) return ncclSuccess;  // while the parent is in progress (src/init.cc, ncclCommSplit)
  parent.block_while_in_progress();
  return *child == nullptr ? parent.state() : await_init(*made);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* error) {
  const RuntimeScope scope;
  if (const ncclResult_t refused = nccl_admitted("ncclCommGetAsyncError")) return refused;
  if (communicator == nullptr || error == nullptr) return ncclInvalidArgument;
  const InsideCall inside(*communicator_of(communicator));
  *error = communicator_of(communicator)->polled();
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t communicator) {
  if (const ncclResult_t refused = nccl_admitted("ncclCommFinalize")) return refused;
  if (communicator == nullptr) return ncclInvalidArgument;
  Communicator& ending = *communicator_of(communicator);
  const InsideCall inside(ending);
  if (ending.is_finalized() || ending.polled() != ncclSuccess) return ncclInvalidArgument;
  ending.begin_finalize();
  return ending.state();
}

ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  if (const ncclResult_t refused = nccl_admitted("ncclCommDestroy")) return refused;
  if (communicator == nullptr) return ncclSuccess;
  Communicator& ending = *communicator_of(communicator);
  if (!ending.is_finalized() && ending.state() == ncclSuccess) ending.begin_finalize();
  ending.block_while_in_progress();
  return released(ending);
}

ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  if (const ncclResult_t refused = nccl_admitted("ncclCommAbort")) return refused;
  if (communicator == nullptr) return ncclSuccess;
  Communicator& ending = *communicator_of(communicator);
  {
    const InsideCall inside(ending);
    delay(Slow::abort, ending.device());
    ending.abort();
  }
  return released(ending);
}

ncclResult_t ncclCommUserRank(const ncclComm_t communicator, int* rank) {
  if (communicator == nullptr || rank == nullptr) return ncclInvalidArgument;
  *rank = communicator_of(communicator)->rank();
  return ncclSuccess;
}

const char* ncclGetLastError(ncclComm_t communicator) {
  return communicator == nullptr ? "" : communicator_of(communicator)->last_error();
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError: return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}
