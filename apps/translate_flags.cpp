// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>

#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/model_flags.h"

namespace saturate::apps {

CLI::App* define_translate(CLI::App& app, TranslateOptions& translate) {
  CLI::App& c = *app.add_subcommand("translate", "translate text, one sentence a line");
  auto* models = c.add_option("--model", translate.models,
                              "folder of a run, or of a Hugging Face model; given again, models of "
                              "one vocabulary translate together")
                     ->required()
                     ->type_name("DIR")
                     ->allow_extra_args(false);
  c.add_option("--weights", translate.weights,
               "what each of several models counts, as 0.6,0.4 [all alike]")
      ->type_name("NUMBER,...")
      ->needs(models)
      ->delimiter(',')
      ->check(real_range(1e-6, 1e6));
  c.add_option("--adapter", translate.model.adapter,
               "folder of an adapter of the one model, as PEFT or train --lora writes it")
      ->type_name("DIR");
  add_device_options(c, translate.model);
  c.add_option("--input", translate.input, "text to translate; - for standard input")
      ->type_name("FILE")
      ->capture_default_str();
  c.add_option("--output", translate.output, "where it goes; - for standard output")
      ->type_name("FILE")
      ->capture_default_str();
  c.add_flag("--skip-bad-lines", translate.skip_bad_lines,
             "translate lines that are no text as blank ones, and count them");
  auto* nbest = c.add_option("--nbest,--n-best", translate.nbest,
                             "so many translations of each line: LINE ||| TEXT ||| F0= "
                             "LOG-PROBABILITY ||| SCORE")
                    ->check(whole_range(1, 64));
  auto* json = c.add_flag("--json", translate.json,
                          "a JSON object for each line: its translations with their scores, tokens "
                          "and the tokens' log-probabilities");
  c.add_flag("--word-scores", translate.word_scores,
             "in lists of --nbest also each token's log-probability: WordScores= ...")
      ->needs(nbest)
      ->excludes(json);
  c.add_option("--prefix-file", translate.prefix_file,
               "line by line what the translation begins with; blank: anything")
      ->type_name("FILE");
  c.add_option("--phrases", translate.phrases,
               "line by line the phrases that the translation must hold, with tabs between; blank: "
               "none; on the CPU, and better with a --beam above the pieces of a line's phrases")
      ->type_name("FILE");
  c.add_option("--first-piece", translate.first_piece,
               "piece of the vocabulary that every translation begins with, as the target language "
               "of a multilingual model")
      ->type_name("PIECE");
  c.add_option("--suppress", translate.suppress,
               "piece that no translation may hold; may be given again")
      ->type_name("PIECE")
      ->allow_extra_args(false);
  c.add_option("--min-length", translate.min_length, "tokens that a translation has at least")
      ->check(whole_range(0, 1 << 20));
  c.add_option("--max-length", translate.max_length,
               "tokens that it has at most [by the source's length]")
      ->check(whole_range(1, 1 << 20));
  c.add_option("--no-repeat-ngram", translate.no_repeat_ngram,
               "no so many tokens in a row twice; 0: any")
      ->check(whole_range(0, 1 << 20))
      ->capture_default_str();
  c.add_option("--repetition-penalty", translate.repetition_penalty,
               "above 1: what was said becomes less likely")
      ->check(real_range(0.01, 100.0))
      ->capture_default_str();
  c.add_flag("--alignments", translate.alignments,
             "behind each translation the pieces that belong together: "
             "TEXT ||| SOURCE-TARGET ..., both counted from 0");
  c.add_flag("--attention", translate.attention,
             "with --json how much of each token of a translation, and of its end, goes to each "
             "token of the source")
      ->needs(json);
  for (CLI::Option* option :
       {c.add_option("--alignment-layer", translate.alignment_layer,
                     "layer of the decoder whose attention counts [the last]"),
        c.add_option("--alignment-head", translate.alignment_head,
                     "head whose attention counts [the mean of all]")})
    option->check(whole_range(0, 1 << 20))->type_name("INT");
  auto* alternatives =
      c.add_option("--alternatives", translate.alternatives,
                   "the so many likeliest pieces behind the prefix, each continued to the best "
                   "translation that begins so; written as --nbest does")
          ->check(whole_range(1, 64))
          ->excludes(nbest);
  alternatives->excludes(c.get_option("--phrases"));
  auto* groups =
      c.add_option("--beam-groups", translate.beam_groups,
                   "search in so many groups of beam / groups hypotheses each, for lists "
                   "that differ more; groups may still find the same translation")
          ->check(whole_range(1, 64))
          ->excludes(alternatives)
          ->capture_default_str();
  c.add_option(
       "--diversity-penalty", translate.diversity_penalty,
       "what a token loses in a group for each earlier group that has chosen it there; at 0 all "
       "groups find the same")
      ->check(real_range(0.0, 1e6))
      ->needs(groups)
      ->capture_default_str();
  auto* sampling = c.add_flag("--sampling", translate.sampling,
                              "draw translations, --nbest of each line, instead of searching")
                       ->excludes(alternatives)
                       ->excludes(groups);
  const auto draws = [&](CLI::Option* option) { option->needs(sampling)->capture_default_str(); };
  draws(c.add_option("--temperature", translate.temperature,
                     "below 1: the likely becomes likelier; above: less so")
            ->check(real_range(1e-3, 1e3)));
  draws(c.add_option("--top-k", translate.top_k, "only the so many likeliest tokens; 0: all")
            ->check(whole_range(0, 1 << 24)));
  draws(c.add_option("--top-p", translate.top_p,
                     "only the likeliest tokens that hold this share of the probability")
            ->check(real_range(1e-6, 1.0)));
  draws(c.add_option("--seed", translate.seed, "another number, other draws")
            ->check(whole_range(0, INT64_MAX)));
  auto* shortlist =
      c.add_option(
           "--shortlist", translate.shortlist,
           "table of the pieces that a translation may hold, by those of its source: Marian's "
           "lexical shortlist or CTranslate2's vmap; on the CPU, for speed")
          ->type_name("FILE");
  add_shortlist_options(c, *shortlist, translate.shortlist_first, translate.shortlist_best);
  c.add_flag("--same-bits", translate.same_bits,
             "on a GPU too a line's result never depends on the others; slower for few lines");
  add_decode_options(c, translate.decode);
  sampling->excludes(c.get_option("--beam"))->excludes(c.get_option("--phrases"));
  groups->excludes(c.get_option("--phrases"));
  c.footer(R"(Examples:
  echo 'A dog runs.' | saturate translate --model runs/ende
  saturate translate --model runs/ende --beam 8 --nbest 8 < test.en > test.nbest
  saturate translate --model runs/ende --json --nbest 4 --prefix-file begun.de < test.en
  saturate translate --model runs/ende --input test.en --output test.de --beam 5
  saturate translate --model runs/ende --model runs/ende-2 --weights 0.6,0.4 < test.en
  saturate translate --model runs/ende --sampling --top-k 10 --nbest 5 < mono.en > back.nbest
Prefix, lengths, penalties and suppressed pieces mean what they mean in CTranslate2: a prefix adds
nothing to score or length, and what is forbidden leaves its probability to the rest.
Of several models the mean of log-probabilities counts, as in Marian and OpenNMT-py; decoding and text
are as the first one's files say, and alignments are its own.
Without --beam and the like the model decodes as [translate] of its run says.)");
  return &c;
}

}  // namespace saturate::apps
