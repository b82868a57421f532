// How long a cold prompt takes on several workers, from what one of them costs. Pure; docs/segment-parallel.md says
// what it leaves out.
#pragma once

#include <cstdint>
#include <vector>

#include "serving/assignment.h"

namespace hypic {

// What was measured of one worker, in seconds.
struct ColdCosts {
  double forward = 0;       // of a forward, whatever its rows
  double token = 0;         // more for each row
  double send_byte = 0;     // a sender's, whoever receives
  double receive_byte = 0;  // the receiver's, of all senders together: taking it and putting it into place
  double request = 0;       // once: router, lookups, plan
};

struct ColdPlan {
  std::vector<int64_t> segments;  // tokens
  int64_t question = 64, seam = 8;
  int64_t layers = 1;
  double residue_bytes = 0, token_bytes = 0;  // of a residue: whatever its length, and for each token
  int64_t rows = 8192;                        // of a forward at most
  int workers = 1;                            // with the one that combines
  Policy policy = Policy::lpt;
  bool pipelined = true;  // residues leave and arrive layer by layer; otherwise whole, and nothing overlaps
};

struct ColdTimes {
  double scatter = 0;        // until the last worker has computed, the one that combines not counted
  double arrived = 0;        // until the last residue is there
  double total = 0;          // until the first token
  std::vector<double> busy;  // by worker: computing
  std::vector<int> worker;   // by segment
};

ColdTimes simulate_cold(const ColdPlan& plan, const ColdCosts& costs);

}  // namespace hypic
