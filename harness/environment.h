// Where and how a run happens, for its report.
#pragma once

#include "reports/report.h"

namespace hypic {

// Version, commit, compiler, CPU, cores, memory, GPU (or why none), system, date (UTC).
Environment environment();

}  // namespace hypic
