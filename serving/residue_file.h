// One entry of the segment cache as a file. docs/segment-cache.md has the format. Files are
// untrusted: every size is checked against the model's own before memory is taken.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/sha256.h"
#include "serving/planner.h"
#include "serving/residue_format.h"

namespace hypic {

// A file that is sound as far as one can tell, but not ours: no residue, another version, another
// model.
struct ForeignFile : Error {
  using Error::Error;
};

// A file of ours that is truncated or damaged: of no use to anybody.
struct DamagedFile : Error {
  using Error::Error;
};

// What identifies an entry beside its tokens: the span of an operator is [first, n − tail).
struct ResidueHeader {
  Part part = Part::kv;
  int32_t first = 0, tail = 0;
  int32_t built_at = 0;  // kv: position of its first use
  Tokens tokens;
};

// What the reader expects of a file.
struct ResidueReader {
  Sha256::Digest identity;  // of model, dtypes, backend, rank
  const ResidueLayout& layout;
  int64_t max_tokens;  // of one entry
};

// Bytes of the whole file.
int64_t residue_file_bytes(const ResidueLayout& layout, Part part, int64_t tokens);

// Writes beside, under a name that nobody else has, flushes to the disk, renames: the file appears whole or not at all,
// whoever else writes the same one. `used`: last use in ns since 1970, becomes its modification time; 0: now.
// Error: cannot write, with the reason; nothing is left behind.
void write_residue_file(const std::string& path, const ResidueReader& expected,
                        const ResidueHeader& header, std::span<const uint8_t> payload,
                        int64_t used = 0);

// Whether a file's name is one that write_residue_file gives to what it has not finished.
bool is_unfinished(const std::string& name);
// Whether it is such a file, and nobody has touched it for an hour before `now` (ns since 1970): its writer died.
// Judged by its ctime: its modification time is when the entry was last used, even while it is written.
bool is_abandoned(const std::string& path, int64_t now);

// The modification time of a file, as above; 0 where there is no such file, or it has an absurd one. Setting it is best
// effort.
int64_t time_of(const std::string& path);
void set_time(const std::string& path, int64_t used);

// Checks all but the payload, which is not read. ForeignFile, DamagedFile, Error: cannot be read.
ResidueHeader read_residue_header(const std::string& path, const ResidueReader& expected);

// The payload, checked, into as many bytes as the layout says. Errors as above; DamagedFile too where the header is not
// `header`.
void read_residue_payload(const std::string& path, const ResidueReader& expected, const ResidueHeader& header,
                          std::span<uint8_t> to);

}  // namespace hypic
