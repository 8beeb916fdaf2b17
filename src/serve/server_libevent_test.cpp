// SPDX-License-Identifier: Apache-2.0
// The server over real sockets, with random models of bytes.
#include "serve/server.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/testing/temp_folder.h"
#include "base/utf8.h"
#include "serve/running_server_test.h"

namespace saturate::serve {
namespace {

using std::chrono::milliseconds;

// One engine; a request names the model or an adapter of it.
TEST(Serve, AdaptersAreModelsByName) {
  struct Setup setup;
  setup.adapters = true;
  const Running s(setup);
  const auto ask = [&s](const std::string& model) {
    return json(
        s.post("/v1/completions",
               R"({"prompt":"to be","temperature":0,"ignore_eos":true,"max_tokens":20,"model":")" +
                   model + "\"}"));
  };
  const Json base = ask("lm"), idle = ask("idle"), other = ask("other");
  EXPECT_EQ(text_of(other["model"]), "other");
  EXPECT_EQ(text_of(idle["choices"][0]["text"]), text_of(base["choices"][0]["text"]));
  EXPECT_NE(text_of(other["choices"][0]["text"]), text_of(base["choices"][0]["text"]));
  EXPECT_EQ(json(s.get("/v1/models"))["data"].size(), 4u);
  EXPECT_EQ(text_of(json(s.get("/v1/models/other"))["parent"]), "lm");
  const Answer none = s.post("/v1/completions", R"({"prompt":"a","model":"others"})");
  EXPECT_EQ(none.status, 404);
  EXPECT_NE(none.body.find("lm, idle, other"), std::string::npos) << none.body;
}

TEST(Serve, LinesEndAsTheyDoOnAnySystem) {
  const Running s;
  const std::string lf = s.post("/v1/translate", "a cat\n\n b\n", "text/plain").body;
  EXPECT_EQ(s.post("/v1/translate", "a cat\r\n\r\n b\r\n", "text/plain").body, lf);
  EXPECT_EQ(lf.find('\r'), std::string::npos);
}

TEST(Serve, RefusesBodiesInFormsThatNothingHereReads) {
  const Running s;
  const Answer form = s.post("/translate", "--x\r\n", "multipart/form-data; boundary=x");
  EXPECT_EQ(form.status, 415);
  EXPECT_NE(form.body.find("name=value"), std::string::npos) << form.body;
  EXPECT_EQ(
      s.post("/v1/completions", "{}", "application/json", "Content-Encoding: gzip\r\n").status,
      415);
  EXPECT_EQ(s.post("/v1/translate", R"({"texts":["a"]})", "application/json",
                   "Content-Encoding: identity\r\n")
                .status,
            200);
}

TEST(Serve, PagesOfOtherOriginsAskWhereTheyMay) {
  const Running closed;
  const std::string from = "Origin: https://a.org\r\n";
  EXPECT_EQ(closed.client().ask("OPTIONS /v1/models", "", from).status, 405);
  EXPECT_EQ(closed.client().ask("GET /health", "", from).header("access-control-allow-origin"), "");

  const Running s({.http = {.port = 0, .origins = {"https://a.org", "http://localhost:3000"}},
                   .keys = "secret\n"});
  const Answer asked =
      s.client().ask("OPTIONS /v1/chat/completions", "",
                     from +
                         "Access-Control-Request-Method: POST\r\n"
                         "Access-Control-Request-Headers: authorization,content-type\r\n");
  EXPECT_EQ(asked.status, 204) << "a browser asks without its key";
  EXPECT_EQ(asked.header("access-control-allow-origin"), "https://a.org");
  EXPECT_EQ(asked.header("access-control-allow-headers"), "authorization,content-type");
  EXPECT_EQ(asked.header("content-length"), "");
  Client two = s.client();
  EXPECT_EQ(two.ask("GET /v1/models", "", from).header("access-control-allow-origin"),
            "https://a.org")
      << "a refusal is read by its page too";
  EXPECT_EQ(two.ask("GET /health", "", "").header("access-control-allow-origin"), "")
      << "the next request of a connection has its own";
  EXPECT_EQ(
      two.ask("GET /health", "", "Origin: https://b.org\r\n").header("access-control-allow-origin"),
      "");
  EXPECT_EQ(two.ask("OPTIONS /health", "", "Origin: https://b.org\r\n").status, 405);

  const Running all({.http = {.port = 0, .origins = {"*"}}});
  const Answer stream =
      all.post("/v1/completions", R"({"prompt":"a","max_tokens":2,"stream":true})",
               "application/json", from);
  EXPECT_EQ(stream.header("access-control-allow-origin"), "*");
}

TEST(Serve, AnswersEveryEndpoint) {
  const Running s;
  EXPECT_EQ(s.get("/health").body, "{\"status\":\"ok\"}\n");
  const Answer page = s.get("/");
  EXPECT_NE(page.body.find("<title>saturate</title>"), std::string::npos);
  EXPECT_EQ(page.body.find("http://"), std::string::npos) << "the page needs another server";
  EXPECT_EQ(json(s.get("/v1/models"))["data"].size(), 2u);
  EXPECT_EQ(text_of(json(s.get("/v1/models/lm"))["kind"]), "language");
  EXPECT_EQ(s.get("/v1/models/none").status, 404);
  const Json languages = json(s.get("/languages"));
  EXPECT_EQ(text_of(languages[0]["code"]), "en");
  EXPECT_EQ(text_of(languages[0]["targets"][0]), "pt");
  EXPECT_EQ(s.get("/none").status, 404);
  EXPECT_EQ(s.get("/translate").status, 405);
  EXPECT_EQ(s.post("/health", "{}").status, 405);
  EXPECT_EQ(s.post("/detect", "q=x").status, 501);
  const Answer head = s.client().ask("HEAD /health", "", {});
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");

  const Json translated = json(s.post("/translate", "q=a+cat&source=en&target=pt&alternatives=1",
                                      "application/x-www-form-urlencoded"));
  EXPECT_FALSE(text_of(translated["translatedText"]).empty());
  EXPECT_EQ(translated["alternatives"].size(), 1u);
  const Json many =
      json(s.post("/translate", R"({"q":["a cat","","b\n\nc"],"source":"auto","target":"pt"})"));
  EXPECT_EQ(text_of(many["translatedText"][0]), text_of(translated["translatedText"]));
  EXPECT_EQ(text_of(many["translatedText"][1]), "");
  EXPECT_NE(text_of(many["translatedText"][2]).find("\n\n"), std::string::npos);
  EXPECT_EQ(text_of(many["detectedLanguage"][2]["language"]), "en");
  const Json batch = json(s.post("/v1/translate", R"({"texts":["a cat","b"],"nbest":2})"));
  EXPECT_EQ(text_of(batch["translations"][0]["text"]), text_of(translated["translatedText"]));
  EXPECT_LT(batch["translations"][0]["score"].number(), 0);
  EXPECT_EQ(batch["translations"][0]["nbest"].size(), 2u);
  EXPECT_EQ(s.post("/v1/translate", "a cat\n\na cat\n", "text/plain").body,
            text_of(translated["translatedText"]) + "\n\n" + text_of(translated["translatedText"]) +
                "\n");

  const Json done = json(s.post("/v1/completions", completion(R"("max_tokens":9)")));
  EXPECT_EQ(text_of(done["object"]), "text_completion");
  EXPECT_EQ(done["usage"]["prompt_tokens"], Json(5));
  EXPECT_EQ(done["usage"]["total_tokens"], Json(5 + *done["usage"]["completion_tokens"].if_int()));
  const Json chat = json(s.post("/v1/chat/completions",
                                R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":9})"));
  EXPECT_EQ(text_of(chat["choices"][0]["message"]["role"]), "assistant");
  EXPECT_GE(s.metric("saturate_done_total{model=\"mt\"}"), 7);
  EXPECT_GE(s.metric("saturate_requests_total{path=\"/translate\",status=\"200\"}"), 2);
}

TEST(Serve, AnswersAreThoseOfTranslatingAlone) {
  const Running s;
  const train::LoadedModel alone = train::random_model(model::ModelKind::encoder_decoder, 64);
  std::vector<std::string> lines;
  for (int i = 0; i < 48; ++i)
    lines.push_back(
        std::string(static_cast<size_t>(1 + i * 7 % 40), static_cast<char>('a' + i % 26)));
  std::vector<std::string> want = translate_lines(alone, decoding(), lines);
  for (std::string& w : want) w = encode_utf8(decode_utf8(w));  // bytes may be no text
  std::atomic<int> wrong{0};
  std::vector<std::thread> clients;
  for (size_t t = 0; t < 8; ++t) {
    clients.emplace_back([&, t] {
      Client client = s.client();  // one connection for all
      for (size_t i = t; i < lines.size(); i += 8) {
        const Answer a =
            client.ask("POST /v1/translate", Json{{"texts", Json::Array{lines[i]}}}.dump(), "");
        if (a.status != 200 || text_of(json(a)["translations"][0]["text"]) != want[i]) ++wrong;
      }
    });
  }
  for (std::thread& c : clients) c.join();
  EXPECT_EQ(wrong, 0);
}

// Lines with and without phrases beside each other, against the same asked of an own translator, down to the scores.
void expect_phrases_alone(bool shortlist) {
  struct Setup setup;
  setup.shortlist = shortlist;
  const Running s(setup);
  const train::LoadedModel alone =
      shortlist ? packed_model() : train::random_model(model::ModelKind::encoder_decoder, 64);
  struct Line {
    std::string text, phrase;
    Json want = {};
  };
  std::vector<Line> lines;
  for (int i = 0; i < 48; ++i) {
    const std::string text(static_cast<size_t>(1 + i * 7 % 40), static_cast<char>('a' + i % 26));
    lines.push_back({text, i % 3 == 0 ? "" : std::string(1, static_cast<char>('A' + i)) + "z"});
  }
  train::LineTranslator translator(alone, decoding(),
                                   {.shortlist = shortlist ? some_bytes() : nullptr});
  for (const Line& line : lines) {
    std::vector<std::vector<int32_t>> phrases;
    if (!line.phrase.empty())
      phrases.push_back(train::encode_phrase(alone.tokenizers.target, line.phrase, "here"));
    translator.add(train::encode_source(alone.tokenizers.source, 64, line.text, 1), {}, phrases);
  }
  size_t next = 0;
  while (!translator.idle()) {
    translator.advance([&](std::span<const train::Translation> best) {
      lines[next++].want = {{"text", encode_utf8(decode_utf8(best[0].text))},
                            {"score", best[0].score},
                            {"log_probability", best[0].log_probability}};
    });
  }
  std::atomic<int> wrong{0}, held{0};
  std::vector<std::thread> clients;
  for (size_t t = 0; t < 8; ++t) {
    clients.emplace_back([&, t] {
      Client client = s.client();
      for (size_t i = t; i < lines.size(); i += 8) {
        Json::Array of_line;
        if (!lines[i].phrase.empty()) of_line.emplace_back(lines[i].phrase);
        const Json body{{"texts", Json::Array{lines[i].text}},
                        {"phrases", Json::Array{Json(std::move(of_line))}}};
        const Answer a = client.ask("POST /v1/translate", body.dump(), "");
        const Json got = json(a)["translations"][0];
        if (a.status != 200 || got != lines[i].want) ++wrong;
        if (text_of(got["text"]).find(lines[i].phrase) != std::string::npos) ++held;
      }
    });
  }
  for (std::thread& c : clients) c.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(held, std::ssize(lines));
}

TEST(Serve, PhrasesAreHeldAndChangeNoOther) { expect_phrases_alone(false); }
TEST(Serve, AShortlistIsOfEachLineAlone) { expect_phrases_alone(true); }

TEST(Serve, TakesPhrasesInEveryForm) {
  const Running s;
  const auto held = [](const Answer& a, const char* phrase) {
    EXPECT_EQ(a.status, 200) << a.body;
    return a.body.find(phrase) != std::string::npos;
  };
  EXPECT_FALSE(held(s.post("/translate", R"({"q":"ab","source":"en","target":"pt"})"), "QZ"));
  EXPECT_TRUE(held(
      s.post("/translate", R"({"q":"ab","source":"en","target":"pt","phrases":["QZ"]})"), "QZ"));
  EXPECT_TRUE(held(s.post("/translate", R"({"q":["ab","","c"],"source":"en","target":"pt",)"
                                        R"("phrases":[[],[],["QZ"]]})"),
                   "QZ"));
  const Answer form = s.post("/translate", "q=ab&source=en&target=pt&phrases=QZ&phrases=XY",
                             "application/x-www-form-urlencoded");
  EXPECT_TRUE(held(form, "QZ") && held(form, "XY"));
  const Json batch = json(
      s.post("/v1/translate", R"({"texts":["ab","c"],"phrases":[["QZ"],[]]})"))["translations"];
  EXPECT_NE(text_of(batch[0]["text"]).find("QZ"), std::string::npos);
  EXPECT_EQ(
      text_of(batch[1]["text"]),
      text_of(json(s.post("/v1/translate", R"({"texts":["c"]})"))["translations"][0]["text"]));
}

TEST(Serve, StreamsAddUpToTheWholeAnswer) {
  const Running s;
  for (const char* more :
       {R"("max_tokens":40)", R"("max_tokens":40,"temperature":0)",
        R"("max_tokens":40,"stop":["a","e"])", R"("max_tokens":40,"echo":true)"}) {
    const Json whole = json(s.post("/v1/completions", completion(more)))["choices"][0];
    const Answer stream =
        s.post("/v1/completions", completion(std::string(more) + R"(,"stream":true)"));
    EXPECT_EQ(stream.header("content-type"), "text/event-stream");
    std::string reason;
    EXPECT_EQ(streamed_text(stream.body, &reason), text_of(whole["text"])) << more;
    EXPECT_EQ(reason, text_of(whole["finish_reason"])) << more;
  }
  const Json again = json(s.post("/v1/completions", completion(R"("max_tokens":20,"n":3)")));
  EXPECT_EQ(again["choices"].size(), 3u);
  EXPECT_NE(text_of(again["choices"][0]["text"]), text_of(again["choices"][1]["text"]));
  EXPECT_EQ(json(s.post("/v1/completions", completion(R"("max_tokens":20,"n":3)")))["choices"],
            again["choices"])
      << "a seed does not repeat";
  const Answer old = s.client().ask_raw(
      "POST /v1/completions HTTP/1.0\r\nContent-Length: 60\r\n\r\n" +
      std::string(R"({"model":"lm","prompt":"to be","max_tokens":5,"stream":true} )"));
  EXPECT_EQ(old.header("transfer-encoding"), "");
  EXPECT_NE(old.body.find("[DONE]"), std::string::npos);
}

TEST(Serve, LogProbabilitiesOfWhatIsGeneratedAndOfPrompts) {
  struct Setup setup;
  setup.adapters = true;
  const Running s(setup);
  const auto choice = [&](const std::string& more, const std::string& model = "lm") {
    return json(s.post("/v1/completions", R"({"prompt":"to be, or ","temperature":0,"model":")" +
                                              model + "\"," + more + "}"))["choices"][0];
  };
  const Json made = choice(R"("max_tokens":6,"logprobs":2,"echo":true,"ignore_eos":true)");
  const Json& scores = made["logprobs"];
  ASSERT_EQ(scores["tokens"].size(), 16u);  // bytes
  EXPECT_TRUE(scores["token_logprobs"][0].is_null());
  EXPECT_TRUE(scores["top_logprobs"][0].is_null());
  for (size_t i = 1; i < 16; ++i) {
    const double own = scores["token_logprobs"][i].number().value();
    EXPECT_LT(own, 0);
    double best = -1e9;
    for (const auto& [token, value] : *scores["top_logprobs"][i].if_object())
      best = std::max(best, value.number().value());
    EXPECT_GE(scores["top_logprobs"][i].size(), 2u);
    EXPECT_LE(own, best) << i;
    if (i >= 10) {
      EXPECT_EQ(own, best) << "the likeliest was taken, " << i;
    }
  }
  EXPECT_EQ(text_of(scores["tokens"][0]), "t");
  EXPECT_EQ(*scores["text_offset"][9].if_int(), 9);

  const Json alone = choice(R"("max_tokens":0,"logprobs":0,"echo":true)");
  EXPECT_EQ(text_of(alone["text"]), "to be, or ");
  EXPECT_TRUE(alone["logprobs"]["top_logprobs"].is_null());
  ASSERT_EQ(alone["logprobs"]["token_logprobs"].size(), 10u);
  for (size_t i = 0; i < 10; ++i)
    EXPECT_EQ(alone["logprobs"]["token_logprobs"][i], scores["token_logprobs"][i]) << i;
  EXPECT_EQ(choice(R"("max_tokens":0,"logprobs":0,"echo":true)", "idle"), alone);
  EXPECT_NE(choice(R"("max_tokens":0,"logprobs":0,"echo":true)", "other"), alone);
  EXPECT_EQ(choice(R"("max_tokens":6,"logprobs":2,"ignore_eos":true)")["logprobs"]["tokens"].size(),
            6u);
  EXPECT_TRUE(choice(R"("max_tokens":6)")["logprobs"].is_null());

  const Json chat =
      json(s.post("/v1/chat/completions",
                  R"({"messages":[{"role":"user","content":"x"}],"model":"lm","max_tokens":3,)"
                  R"("logprobs":true,"top_logprobs":3,"ignore_eos":true,"seed":1})"))["choices"][0];
  ASSERT_EQ(chat["logprobs"]["content"].size(), 3u);
  const Json& first = chat["logprobs"]["content"][0];
  EXPECT_LT(first["logprob"].number().value(), 0);
  EXPECT_EQ(first["top_logprobs"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const Json& one = chat["logprobs"]["content"][i];
    EXPECT_EQ(one["bytes"].size(), 1u);
  }
}

TEST(Serve, RulesHoldForASequence) {
  const Running s;
  const auto tokens_of = [&](const std::string& more, const std::string& temperature = "0") {
    const Json scores = json(s.post(
        "/v1/completions",
        completion(R"("ignore_eos":true,"logprobs":0,"temperature":)" + temperature + "," + more)));
    std::vector<std::string> tokens;
    for (const Json& t : *scores["choices"][0]["logprobs"]["tokens"].if_array())
      tokens.push_back(text_of(t));
    return tokens;
  };
  const auto repeats = [](std::vector<std::string> tokens) {
    std::sort(tokens.begin(), tokens.end());
    return std::adjacent_find(tokens.begin(), tokens.end()) != tokens.end();
  };
  EXPECT_TRUE(repeats(tokens_of(R"("max_tokens":30)"))) << "the case shows nothing";
  EXPECT_FALSE(repeats(tokens_of(R"("max_tokens":30,"no_repeat_ngram_size":1)")));
  EXPECT_FALSE(repeats(tokens_of(R"("max_tokens":30,"repetition_penalty":100)")));
  // What was said has no chance against what was not, and a draw among equals is none.
  EXPECT_FALSE(repeats(tokens_of(R"("max_tokens":30,"presence_penalty":2,"frequency_penalty":2)")));
  EXPECT_EQ(tokens_of(R"("max_tokens":30,"min_p":1)", "2"), tokens_of(R"("max_tokens":30)"));
  // A byte's id is the byte and 2.
  EXPECT_EQ(tokens_of(R"("max_tokens":30,"logit_bias":{"99":100})"),
            std::vector<std::string>(30, "a"));
  const auto without = tokens_of(R"("max_tokens":60,"logit_bias":{"99":-100,"103":-100.0})", "1");
  EXPECT_EQ(std::ranges::count(without, "a") + std::ranges::count(without, "e"), 0);
  EXPECT_EQ(tokens_of(R"("max_tokens":30,"logit_bias":{})"), tokens_of(R"("max_tokens":30)"));
  const Json long_enough =
      json(s.post("/v1/completions", completion(R"("max_tokens":60,"min_tokens":60,"n":16)")));
  EXPECT_EQ(*long_enough["usage"]["completion_tokens"].if_int(), 16 * 60);
}

TEST(Serve, TheBestOfWhatWasDrawn) {
  const Running s;
  const std::string body =
      R"({"model":"lm","prompt":["to be","or not"],"seed":7,"max_tokens":12,"logprobs":0,)";
  const Json drawn = json(s.post("/v1/completions", body + R"("n":6})"));
  const Json best = json(s.post("/v1/completions", body + R"("n":2,"best_of":6})"));
  ASSERT_EQ(best["choices"].size(), 4u);
  EXPECT_EQ(best["usage"], drawn["usage"]);  // what was drawn counts
  const auto mean = [](const Json& choice) {
    const Json& own = choice["logprobs"]["token_logprobs"];
    double sum = 0;
    for (const Json& p : *own.if_array()) sum += *p.number();
    return own.size() > 0 ? sum / static_cast<double>(own.size()) : -INFINITY;
  };
  for (size_t prompt = 0; prompt < 2; ++prompt) {
    std::vector<std::pair<double, std::string>> want;
    for (size_t i = 6 * prompt; i < 6 * prompt + 6; ++i)
      want.emplace_back(-mean(drawn["choices"][i]), text_of(drawn["choices"][i]["text"]));
    std::ranges::sort(want);
    for (size_t i = 0; i < 2; ++i) {
      const Json& got = best["choices"][2 * prompt + i];
      EXPECT_EQ(text_of(got["text"]), want[i].second);
      EXPECT_EQ(*got["index"].if_int(), static_cast<int64_t>(2 * prompt + i));
    }
  }
}

TEST(Serve, RefusesWhatItCannotDoAndSaysWhy) {
  const Running s;
  const struct {
    const char *path, *body, *says;
    int status;
  } cases[] = {
      {"/translate", "", "empty", 400},
      {"/translate", "{", "no valid JSON at byte", 400},
      {"/translate", "[]", "an object", 400},
      {"/translate", R"({"source":"en","target":"pt"})", "q is missing", 400},
      {"/translate", R"({"q":5,"source":"en","target":"pt"})", "q is 5", 400},
      {"/translate", R"({"q":["a",5],"source":"en","target":"pt"})", "list of strings", 400},
      {"/translate", R"({"q":"a","source":"en"})", "target is missing", 400},
      {"/translate", R"({"q":"a","source":"en","target":"de"})", "en to de is not translated", 400},
      {"/translate", R"({"q":"a","source":"en","target":"pt","format":"html"})", "only text", 400},
      {"/translate", R"({"q":"a","source":"en","target":"pt","alternatives":-1})", "0 .. 64", 400},
      {"/v1/translate", R"({"texts":[]})", "empty", 400},
      {"/v1/translate", R"({"texts":["a\nb"]})", "several lines", 400},
      {"/v1/translate", R"({"texts":["a"],"nbest":0})", "1 .. 64", 400},
      {"/v1/translate", R"({"texts":["a"],"modle":"x"})", "modle", 400},
      {"/translate", R"({"q":"a","source":"en","target":"pt","phrases":"b"})", "a list", 400},
      {"/translate", R"({"q":"a","source":"en","target":"pt","phrases":[["b"]]})",
       "a list of strings", 400},
      {"/translate", R"({"q":["a"],"source":"en","target":"pt","phrases":["b"]})",
       "a list of strings for each of the 1 texts", 400},
      {"/translate", R"({"q":"a\nb","source":"en","target":"pt","phrases":["b"]})",
       "text with 2 lines", 400},
      {"/translate", R"({"q":["a"," "],"source":"en","target":"pt","phrases":[[],["b"]]})",
       "phrases[1] are of a text with 0 lines", 400},
      {"/v1/translate", R"({"texts":["a","b"],"phrases":[["c"]]})", "each of the 2 texts", 400},
      {"/v1/translate", R"({"texts":["a"],"phrases":[[5]]})", "a list of strings", 400},
      {"/v1/translate", R"({"texts":["a"],"phrases":[["b",""]]})", "phrases[0][1]", 400},
      {"/v1/translate",
       R"({"texts":["a"],"phrases":[["bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"]]})",
       "prefix and phrases have", 400},
      {"/v1/translate", R"({"texts":["a"],"model":"lm"})", "no translation model", 400},
      {"/v1/translate", R"({"texts":["a"],"model":"zz"})", "models here: mt", 404},
      {"/v1/translate", "{\"texts\":[\"\xFF\"]}", "no valid JSON", 400},
      {"/v1/translate", R"({"texts":["a\u0000b"]})", "NUL", 400},
      {"/translate", R"({"q":"a\u0000b","source":"en","target":"pt"})", "NUL", 400},
      {"/v1/completions", R"({"model":"lm"})", "prompt is missing: give the text", 400},
      {"/v1/completions", R"({"prompt":[-1]})", "token ids", 400},
      {"/v1/completions", R"({"prompt":[100000]})", "below", 400},
      {"/v1/completions", R"({"prompt":"a","temperature":-1})", "temperature is -1", 400},
      {"/v1/completions", R"({"prompt":"a","n":1e9})", "integer", 400},
      {"/v1/completions", R"({"prompt":"a","n":1000})", "1 .. 128", 400},
      {"/v1/completions", R"({"prompt":"a","max_tokens":0})", "1 .. ", 400},
      {"/v1/completions", R"({"prompt":"a","stop":""})", "stop", 400},
      {"/v1/completions", R"({"prompt":"a","repetition_penalty":0})", "0.01 .. 100", 400},
      {"/v1/completions", R"({"prompt":"a","presence_penalty":3})", "-2 .. 2", 400},
      {"/v1/completions", R"({"prompt":"a","frequency_penalty":"much"})", "frequency_penalty", 400},
      {"/v1/completions", R"({"prompt":"a","min_p":1.5})", "0 .. 1", 400},
      {"/v1/completions", R"({"prompt":"a","best_of":2,"n":3})", "3 .. 128", 400},
      {"/v1/completions", R"({"prompt":"a","best_of":2,"stream":true})", "without \"stream\"", 400},
      {"/v1/completions", R"({"prompt":["a","b"],"best_of":65})", "times best_of", 400},
      {"/v1/completions", R"({"prompt":"a","logit_bias":[5]})", "object of token id", 400},
      {"/v1/completions", R"({"prompt":"a","logit_bias":{"05":1}})", "no token id", 400},
      {"/v1/completions", R"({"prompt":"a","logit_bias":{"5":101}})", "-100 .. 100", 400},
      {"/v1/completions", R"({"prompt":"a","logit_bias":{"5":"1"}})", "must be a number", 400},
      {"/v1/completions", R"({"prompt":"a","logit_bias":{"259":1}})", "below 259", 400},
      {"/v1/completions", R"({"prompt":"a","min_tokens":-1})", "min_tokens", 400},
      {"/v1/completions", R"({"prompt":"a","min_tokens":17})", "max_tokens is 16", 400},
      {"/v1/completions", R"({"prompt":"a","logprobs":21})", "0 .. 20", 400},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":2})",
       "\"logprobs\": true", 400},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],"min_tokens":99999})",
       "an answer may have", 400},
      {"/v1/chat/completions", R"({"messages":[]})", "messages is []", 400},
      {"/v1/chat/completions", R"({"messages":[{"role":"critic","content":"x"}]})", "role", 400},
      {"/v1/chat/completions", R"({"messages":[{"role":"tool","content":"x"}]})", "has no tools",
       400},
      {"/v1/chat/completions", R"({"messages":[{"role":"user"}]})", "content is missing", 400},
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"x"}],"tools":[{}]})",
       "tools", 400},
  };
  for (const auto& c : cases) {
    const Answer a = s.post(c.path, c.body);
    EXPECT_EQ(a.status, c.status) << c.body;
    EXPECT_NE(error_of(a).find(c.says), std::string::npos) << c.body << " -> " << error_of(a);
  }
  const std::string deep = std::string(5000, '[');
  EXPECT_EQ(s.post("/v1/translate", deep).status, 400);
  const std::string long_line(200, 'x');
  EXPECT_NE(error_of(s.post("/v1/translate", Json{{"texts", Json::Array{long_line}}}.dump()))
                .find("201 tokens and the model takes 64"),
            std::string::npos);
  const auto detail = [&](const std::string& body, const char* key) {
    return text_of(json(s.post("/v1/completions", body))["error"][key]);
  };
  const std::string long_prompt = Json{{"prompt", std::string(20000, 'x')}}.dump();
  EXPECT_EQ(s.post("/v1/completions", long_prompt).status, 400);
  EXPECT_EQ(detail(long_prompt, "code"), "context_length_exceeded");
  EXPECT_EQ(detail(long_prompt, "param"), "prompt");
  EXPECT_EQ(detail(R"({"prompt":"a","model":"other"})", "code"), "model_not_found");
  EXPECT_EQ(detail(R"({"prompt":"a","model":"other"})", "param"), "model");
  EXPECT_EQ(detail(R"({"prompt":"a","min_tokens":-1})", "param"), "min_tokens");
  EXPECT_EQ(s.post("/v1/translate", "\xFF", "text/plain").status, 400);
  EXPECT_EQ(s.client().ask_raw("nonsense\r\n\r\n").status, 400);
  EXPECT_EQ(s.client().ask_raw("GET /invented HTTP/1.1\r\n\r\n").status, 400);  // no Host
  EXPECT_EQ(s.get("/metrics").body.find("invented"), std::string::npos)
      << "clients fill the memory";
  EXPECT_EQ(s.get("/health").status, 200);
}

TEST(Serve, RefusesLargeBodiesBeforeTheyAreRead) {
  const Running s;
  const std::string head = "POST /translate HTTP/1.1\r\nHost: h\r\n";
  constexpr size_t kSize = size_t{100} << 20;
  const double before = s.metric("process_resident_memory_bytes");
  for (const std::string& coding :
       {"Content-Length: " + std::to_string(kSize) + "\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n" + std::string("6400000\r\n")}) {
    Client client = s.client();
    client.send(head + coding);
    const std::string part(size_t{1} << 16, 'x');
    for (size_t sent = 0; sent < kSize && client.try_send(part); sent += part.size()) {
    }
    const Answer a = client.read();  // though the client wrote all the time
    EXPECT_EQ(a.status, 413);
    EXPECT_NE(error_of(a).find("1048576"), std::string::npos);
  }
  EXPECT_LT(s.metric("process_resident_memory_bytes") - before, 32 << 20);
}

TEST(Serve, SlowClientsAreEndedAndBlockNobody) {
  const Running s({.http = {.read_seconds = 0.3, .idle_seconds = 0.3}});
  Client slow = s.client(), silent = s.client();
  slow.send("POST /v1/translate HTTP/1.1\r\nHo");
  EXPECT_EQ(s.post("/v1/translate", R"({"texts":["a"]})").status, 200);
  EXPECT_EQ(slow.read().status, 408);
  EXPECT_EQ(silent.read().status, 0) << "an idle connection is closed without a word";
}

TEST(Serve, AClientThatGoesFreesItsSlotAndIsCounted) {
  Running s;
  {
    Client client = s.client();
    client.send_request("POST /v1/completions",
                        completion(R"("ignore_eos":true,"max_tokens":16000,"stream":true,"n":2)"),
                        "");
    EXPECT_NE(client.read_some().find("200 OK"), std::string::npos);
    EXPECT_EQ(s.metric("saturate_running{model=\"lm\"}"), 2);
  }
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(s.post("/v1/completions", completion(R"("max_tokens":1)")).status, 200);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(2));
  EXPECT_LT(s.metric("saturate_tokens_out_total{model=\"lm\"}"), 30000);
  s.server->drain();
  s.join();
  EXPECT_EQ(s.server->left(), 1) << "the others had their answers, or asked nothing";
  EXPECT_EQ(s.server->cut_off(), 0);
}

TEST(Serve, AFullQueueIsSaid) {
  const Running s({.queue = 3});
  EXPECT_EQ(s.post("/v1/translate", R"({"texts":["a","b","c","d"]})").status, 413);
  Client busy = s.client();  // the language model works on this for a while
  busy.send_request("POST /v1/completions",
                    completion(R"("ignore_eos":true,"max_tokens":16000,"stream":true,"n":2)"), "");
  busy.read_some();
  std::vector<Client> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.push_back(s.client());
    waiting.back().send_request("POST /v1/completions", completion(R"("max_tokens":1)"), "");
  }
  while (s.metric("saturate_waiting{model=\"lm\"}") < 3)
    std::this_thread::sleep_for(milliseconds(5));
  const Answer refused = s.post("/v1/completions", completion(R"("max_tokens":1)"));
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(refused.header("retry-after"), "1");
  busy.close();
  for (Client& w : waiting) EXPECT_EQ(w.read().status, 200);
}

TEST(Serve, AnAnswerThatTakesTooLongEnds) {
  const Running s({.http = {.answer_seconds = 0.7}});
  EXPECT_EQ(
      s.post("/v1/completions", completion(R"("ignore_eos":true,"max_tokens":16000,"n":2)")).status,
      504);
  const Answer stream = s.post("/v1/completions",
                               completion(R"("ignore_eos":true,"max_tokens":16000,"stream":true)"));
  EXPECT_EQ(stream.status, 200);
  EXPECT_NE(stream.body.find("the time of this request is over"), std::string::npos);
  EXPECT_TRUE(stream.body.ends_with("data: [DONE]\n\n"));
}

TEST(Serve, DrainingFinishesWhatWasAccepted) {
  Running s;
  Client streaming = s.client(), open = s.client();
  streaming.send_request("POST /v1/completions",
                         completion(R"("ignore_eos":true,"max_tokens":500,"stream":true)"), "");
  std::string begun = streaming.read_some();
  s.server->drain();
  while (s.get("/health").status != 503) std::this_thread::sleep_for(milliseconds(2));
  const Answer refused = open.ask("POST /v1/translate", R"({"texts":["a"]})", "");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.header("retry-after"), "1");
  EXPECT_EQ(refused.header("connection"), "close");
  const Answer whole = streaming.read(std::move(begun));
  EXPECT_NE(whole.body.find("[DONE]"), std::string::npos);
  s.join();
  EXPECT_EQ(s.server->cut_off(), 0);
  EXPECT_EQ(s.server->left(), 0);
}

TEST(Serve, KeysAreAskedFor) {
  const Running s({.keys = "# of nobody\nfirst\nsecond # of somebody\n"});
  const std::string body = R"({"texts":["a"]})";
  EXPECT_EQ(s.get("/health").status, 200);
  EXPECT_EQ(s.get("/").status, 200);
  EXPECT_EQ(s.get("/metrics").status, 401);
  EXPECT_EQ(s.post("/v1/translate", body).status, 401);
  EXPECT_EQ(s.post("/v1/translate", body).header("www-authenticate"), "bearer");
  for (const auto& [key, status] :
       {std::pair{"first", 200}, {"second", 200}, {"secon", 401}, {"", 401}, {"#", 401}}) {
    EXPECT_EQ(s.post("/v1/translate", body, "application/json",
                     std::string("Authorization: Bearer ") + key + "\r\n")
                  .status,
              status);
    const std::string text =
        R"({"q":"a","source":"en","target":"pt","api_key":")" + std::string(key) + "\"}";
    EXPECT_EQ(s.post("/translate", text).status, status) << key;
    EXPECT_EQ(s.get("/languages?api_key=" + std::string(key)).status, status) << key;
  }
}

TEST(Serve, ConnectionsBeyondTheLimitAreRefused) {
  const Running s({.http = {.connections = 2}});
  Client a = s.client(), b = s.client();
  EXPECT_EQ(a.ask("GET /health", "", "").status, 200);
  EXPECT_EQ(b.ask("GET /health", "", "").status, 200);
  EXPECT_EQ(s.client().read().status, 503);
  EXPECT_EQ(a.ask("GET /health", "", "").status, 200);
}

TEST(Serve, RequestsThatDoNotWaitAreAnsweredInOrder) {
  const Running s;
  Client client = s.client();
  client.send(
      "GET /health HTTP/1.1\r\nHost: h\r\n\r\nPOST /v1/translate HTTP/1.1\r\nHost: "
      "h\r\nContent-Length: 15\r\n\r\n" +
      std::string(R"({"texts":["a"]})") + "GET /languages HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_NE(client.read().body.find("ok"), std::string::npos);
  EXPECT_NE(client.read().body.find("translations"), std::string::npos);
  EXPECT_NE(client.read().body.find("English"), std::string::npos);
}

TEST(FolderWatch, SeesFilesThatChange) {
  const testing::TempFolder folder;
  const std::string file = folder.path() + "/model.safetensors";
  std::ofstream(file) << "one";
  const FolderWatch watch(folder.path());
  EXPECT_EQ(watch.change(), "");
  std::ofstream(folder.path() + "/new") << "x";
  EXPECT_EQ(watch.change(), "new is new");
  std::filesystem::remove(folder.path() + "/new");
  std::ofstream(file) << "longer";
  EXPECT_EQ(watch.change(), "model.safetensors was written again");
  std::filesystem::remove(file);
  EXPECT_EQ(watch.change(), "model.safetensors is gone");
}

}  // namespace
}  // namespace saturate::serve
