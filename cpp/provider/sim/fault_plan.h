// What goes wrong, how often, and how slow everything is. The default plan is a well-behaved small network.
#pragma once

#include "provider/provider.h"

namespace rrpc::provider::sim {

struct FaultPlan {
  // Every message of one direction of one connection: in order, each after its own delay.
  TimeNs delay_ns_min = 1 * kMicrosecond;
  TimeNs delay_ns_max = 10 * kMicrosecond;
  double late_probability = 0;
  TimeNs late_delay_ns_max = 50 * kMillisecond;

  // From when the device is done with a request until poll() can see it.
  TimeNs completion_delay_ns_min = 0;
  TimeNs completion_delay_ns_max = 5 * kMicrosecond;

  // A READ is served in up to so many pieces, each sampled from its source at its own moment.
  uint32_t read_pieces_max = 4;
  TimeNs read_spread_ns_max = 10 * kMicrosecond;
  double late_read_probability = 0;
  TimeNs late_read_delay_ns_max = 50 * kMillisecond;

  double connect_refused_probability = 0;
  double connect_unanswered_probability = 0;

  // A connection is lost at a random moment of its first `loss_after_ns_max`. Each end is told of it, or of
  // a killed host, with `loss_notice_probability`; an end that isn't told sees nothing at all.
  double loss_probability = 0;
  TimeNs loss_after_ns_max = 10 * kMillisecond;
  double loss_notice_probability = 0;
  // A request unanswered for so long fails with kRetryExceeded, as a hardware retry count would have it.
  TimeNs retry_timeout_ns = kNever;

  // expose() of memory without a file behind it is refused with FailedPrecondition.
  double unreachable_memory_probability = 0;

  // revoke() only begins: the range stays open for up to so long.
  double slow_revocation_probability = 0;
  TimeNs revocation_delay_ns_max = 100 * kMicrosecond;

  // adopt() finds no more memory to pin. And whether posting memory of a region that wasn't adopted is a violation.
  double adopt_refused_probability = 0;
  bool posting_needs_adoption = false;

  // A message that is polled lies somewhere else than in the receive that it took (Completion::place), as over shm and
  // tcp.
  double elsewhere_probability = 0;

  // A server knows what the client offers from accept() on, not only once connected.
  bool offer_known_at_accept = false;

  // What queue pairs say of their exposures; they are checked by table whatever it says.
  ExposureKind exposure_kind = ExposureKind::kChecked;

  // Fills what the device owns (READ destinations in flight, flushed receives) with 0xDB.
  bool scribble = true;

  // Caps on what a queue pair is given, whatever its config asks for.
  QueuePairLimits limits_max = {
      .send_depth = 4096,
      .receive_depth = 4096,
      .sge_count_max = 8,
      .read_sge_count_max = 8,
      .read_depth = 16,
      .inline_bytes_max = 64,
      .message_bytes_max = 1U << 30,
  };
};

}  // namespace rrpc::provider::sim
