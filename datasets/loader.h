// Rows of question answering and summarization datasets, whatever format they come in.
#pragma once

#include <string>
#include <vector>

namespace hypic {

// One row in LongBench's terms: `question` is its "input", `context` what the prompt puts before
// it.
struct Item {
  std::string id, dataset, context, question;
  std::vector<std::string> answers;
};

// The rows of `path`, in a format that their fields tell:
//   LongBench      input, context, answers (a list, or one written as a string), _id, dataset
//   HotpotQA       context [[title, [sentence, …]], …] or {title, sentences}, question, answer
//   2WikiMultihop  the same with evidences
//   MuSiQue        paragraphs, question, answer, answer_aliases
//   TriviaQA       Question, Answer, EntityPages, SearchResults; documents in ../evidence/wikipedia
//                  and ../evidence/web beside the file's folder, as in the archive
//   Multi-News     document (stories between |||||), summary; or the lines of X.src and X.tgt
//   GovReport      report, highlight (GAO) or reports, summary (CRS), in one file a report: `path`
//                  may be their folder; or report and summary, or document and summary, as strings
// JSON Lines, an array, or one value. Contexts are made as LongBench made its own: passages under
// headers "Passage N:\n", reports without their section titles. TriviaQA's few-shot blocks are the
// eight rows after a row, the first after the last, each with the first 800 words of its document.
//
// `name` is the dataset to read as; needed only where fields leave it open: a LongBench row without
// "dataset", or document and summary of GovReport. Throws Error, with path:line, for a row that is
// malformed, of an unknown or another dataset's format, or over 64 MiB; with the path for a file
// that cannot be read, holds no row, or more than 4 GiB of text.
std::vector<Item> load_dataset(const std::string& path, const std::string& name = "");

}  // namespace hypic
