#include "core/fuzz.h"
#include "core/json.h"
#include "serving/openai_api.h"

namespace hypic {
namespace {

// A body, as either endpoint and /tokenize read it.
void check(std::string_view body) {
  for (const ChatTemplate chat : {ChatTemplate::chatml, ChatTemplate::bailing, ChatTemplate::kimi}) {
    const ApiOptions options{.chat = chat};
    for (const auto parse : {parse_completion, parse_chat})
      takes([&] {
        const ApiRequest request = parse(body, options);
        HYPIC_CHECK(!request.segments.empty());
        for (const auto& segment : request.segments) {
          HYPIC_CHECK(!std::visit([](const auto& one) { return one.empty(); }, segment));
          if (const auto* tokens = std::get_if<Tokens>(&segment))
            for (const int32_t token : *tokens) HYPIC_CHECK(token >= 0);
        }
        HYPIC_CHECK(request.max_tokens.value_or(1) >= 1 && request.sampling.temperature >= 0);
      });
  }
  takes([&] { parse_tokenize(body, {}); });
  // Whatever a client sent may stand in an answer.
  const std::string text(body);
  check_json(error_body(ApiError(400, text, text)), "error");
  const Answer answer{.chat = true, .id = text, .model = text, .text = text, .token_ids = Tokens{1}};
  for (const std::string& out : {answer_body(answer, {}), chunk_body(answer, true), usage_chunk_body(answer, {})}) {
    check_json(out, "answer");
    HYPIC_CHECK(out.find('\n') == out.npos, "an event is one line");
  }
}

}  // namespace
}  // namespace hypic

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hypic::check(hypic::as_text(data, size));
  return 0;
}
