// A kernel plug-in runs in a child process only: the program runs itself again, and whatever the plug-in does to it
// (crash, exit, hang) becomes a verdict of the parent, which never loads it. This guards against faults, not against
// malice: the child has the user's rights.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/family.h"
#include "kernels/plugin/plugin_backend.h"
#include "reports/report.h"

namespace hypic::kernel_process {

inline constexpr const char* kOption = "--kernel";  // of the command line: its file

// The most seconds that one call of the plug-in, or one wait for the device behind it, may take by default.
inline constexpr int kSeconds = 120;

// In any process
// ----------------------------------------------------------------------------------------------

// Whether this process is such a child.
bool is_child();

// In the parent
// ----------------------------------------------------------------------------------------------

// How a child ended.
struct Ending {
  int status = 0;                 // its exit code, where it came to its end by itself
  std::string why;                // else what the plug-in did, one line
  std::string out, name, driver;  // the case that it was at, and the folder of its report; empty: none
};

// The file that `argv` names by kOption; empty: none.
std::string named_in(int argc, char* const argv[]);

// Runs this program with `argv` as a child until its end; signals that ask this process to stop are passed on.
// `goes_on`: as resumes() says there.
Ending run(char* const argv[], bool goes_on = false);

// The same until it comes to its end: a case that the plug-in `kernel` does not survive is a FAIL of the report, and
// another child goes on behind it. The program's exit code.
int run_self(char* const argv[], const std::string& kernel);

// In the child
// ----------------------------------------------------------------------------------------------

// Where calls of plug-ins are noted, for the parent and for the report.
plugin::Watch& watch();
void limit_seconds(int seconds);  // in place of kSeconds
// Whether an earlier child of the same parent ended in a case: its results are to be kept.
bool goes_on();
// The case that runs from here on; empty: none.
void at_case(const std::string& out, const std::string& name, const std::string& driver);
// The library that was loaded; empty: none.
std::string library();
// Whether the plug-in offers this operation, itself or as a part of a composite, and of linear attention this cell.
bool offers(std::string_view operation, const FamilyTraits* family);
// How often the plug-in computed one of its operations so far, over all backends.
int64_t calls();
// What computed the operations that it offers, as a case of the report: INVALID where it never did.
Result result();
// That the program comes to its end by itself, the last thing that it does.
void done(int status);

}  // namespace hypic::kernel_process
