#pragma once
/// @file
/// All-reduce in shared memory by the algorithm that a topology selects, over the mailboxes.

#include <cstddef>
#include <exception>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/message_passing/memory.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/backend/message_passing/selected_all_reduce.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/backend/shared_memory/collectives/mailbox_endpoint.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/kernels/sum_of_squares.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A channel's endpoint, and constants and memory for its selected algorithm. Outlives the channel's work.
struct MailboxState {
  MailboxState(const ChannelContext& context, Channel& channel,
               const message_passing::SelectedAllReduce<MailboxEndpoint>& all_reduce)
      : endpoint(channel),
        selected(all_reduce),
        info{context.name, context.members.ranks_in_job(), tuning(), context.describe, context.accumulate} {}

  /// Headers without a payload, and messages that fill a mailbox: then the receiver copies one while the sender writes
  /// the next.
  static message_passing::Tuning tuning() noexcept {
    message_passing::Tuning tuning;
    tuning.small_bytes = 0;
    tuning.chunk_bytes = mailbox_slots * mailbox_slot_bytes;
    tuning.chunks_in_flight = 2;
    return tuning;
  }

  MailboxEndpoint endpoint;
  const message_passing::SelectedAllReduce<MailboxEndpoint> selected;
  const message_passing::ChannelInfo info;
  message_passing::Scratch scratch;
};

struct EndpointAllReduce {
  const std::byte* input;
  std::byte* output;
  double* squares;  ///< see CanSumSquares; may be null
  MailboxState* mailbox;

  void operator()(Channel& channel, const Operation& operation) const noexcept {
    using Context = message_passing::OperationContext<MailboxEndpoint>;
    try {
      Context context{mailbox->endpoint, mailbox->scratch, mailbox->info, operation};
      const message_passing::Buffers buffers{input, output};
      const message_passing::Routine routine = mailbox->selected.routine(context, buffers);
      routine.resume();
      if (routine.done()) {
        routine.check();
        if (squares != nullptr) {
          *squares = kernels::sum_of_squares(operation.dtype, output, operation.count, channel.isa());
        }
      }
    } catch (const Error& error) {
      const bool disagrees = error.code() == make_error_code(Errc::disagreement);
      disagrees ? channel.fail({CauseKind::disagreement, -1, "", error.what()}) : fail(channel, error);
    } catch (const std::exception& error) {
      fail(channel, error);
    }
  }

 private:
  static void fail(Channel& channel, const std::exception& error) {
    channel.fail({CauseKind::exception, channel.job_rank(), channel.host(),
                  format_text("{}: {}", {channel.present(), error.what()})});
  }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
