// SPDX-License-Identifier: Apache-2.0
// The phrases of the quickstart's corpus; numbers are in quickstart_numbers.cpp.
#include "apps/quickstart_grammar.h"

#include <fmt/format.h>

#include <chrono>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/philox.h"

namespace saturate::apps {
namespace {

constexpr Gender kMasculine = Gender::masculine, kFeminine = Gender::feminine;

// Draws from a counter-based stream, so that a corpus is the same on every machine.
class Draw {
 public:
  explicit Draw(uint64_t seed) : seed_(seed) {}
  int64_t below(int64_t bound) {  // bias below bound / 2^32
    return static_cast<int64_t>((next() * static_cast<uint64_t>(bound)) >> 32);
  }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  template <class T, size_t N>
  const T& of(const T (&list)[N]) {
    return list[below(static_cast<int64_t>(N))];
  }

 private:
  uint64_t next() { return random_block(seed_, 0, 0, counter_++).x[0]; }
  uint64_t seed_, counter_ = 0;
};

struct Noun {
  const char *en, *en_plural, *pt, *pt_plural;
  Gender gender;
};
constexpr Noun kThings[] = {{"book", "books", "livro", "livros", kMasculine},
                            {"car", "cars", "carro", "carros", kMasculine},
                            {"cat", "cats", "gato", "gatos", kMasculine},
                            {"loaf", "loaves", "pão", "pães", kMasculine},
                            {"animal", "animals", "animal", "animais", kMasculine},
                            {"ship", "ships", "navio", "navios", kMasculine},
                            {"house", "houses", "casa", "casas", kFeminine},
                            {"table", "tables", "mesa", "mesas", kFeminine},
                            {"flower", "flowers", "flor", "flores", kFeminine},
                            {"chair", "chairs", "cadeira", "cadeiras", kFeminine},
                            {"city", "cities", "cidade", "cidades", kFeminine},
                            {"letter", "letters", "carta", "cartas", kFeminine}};
constexpr Noun kCurrencies[] = {{"dollar", "dollars", "dólar", "dólares", kMasculine},
                                {"euro", "euros", "euro", "euros", kMasculine},
                                {"real", "reais", "real", "reais", kMasculine},
                                {"peso", "pesos", "peso", "pesos", kMasculine},
                                {"pound", "pounds", "libra", "libras", kFeminine},
                                {"crown", "crowns", "coroa", "coroas", kFeminine},
                                {"rupee", "rupees", "rúpia", "rúpias", kFeminine}};
constexpr int64_t kCurrenciesWithCents = 4;  // the first ones, whose hundredth is a centavo
constexpr Noun kSpans[] = {{"minute", "minutes", "minuto", "minutos", kMasculine},
                           {"day", "days", "dia", "dias", kMasculine},
                           {"month", "months", "mês", "meses", kMasculine},
                           {"year", "years", "ano", "anos", kMasculine},
                           {"hour", "hours", "hora", "horas", kFeminine},
                           {"week", "weeks", "semana", "semanas", kFeminine}};

struct Adjective {
  const char *en, *masculine, *feminine, *masculine_plural, *feminine_plural;
};
constexpr Adjective kAdjectives[] = {{"red", "vermelho", "vermelha", "vermelhos", "vermelhas"},
                                     {"new", "novo", "nova", "novos", "novas"},
                                     {"old", "velho", "velha", "velhos", "velhas"},
                                     {"small", "pequeno", "pequena", "pequenos", "pequenas"},
                                     {"big", "grande", "grande", "grandes", "grandes"},
                                     {"blue", "azul", "azul", "azuis", "azuis"}};

constexpr std::pair<const char*, const char*> kMonths[] = {
    {"january", "janeiro"}, {"february", "fevereiro"}, {"march", "março"},
    {"april", "abril"},     {"may", "maio"},           {"june", "junho"},
    {"july", "julho"},      {"august", "agosto"},      {"september", "setembro"},
    {"october", "outubro"}, {"november", "novembro"},  {"december", "dezembro"}};
constexpr std::pair<const char*, const char*> kWeekdays[] = {
    {"sunday", "domingo"},         {"monday", "segunda-feira"},  {"tuesday", "terça-feira"},
    {"wednesday", "quarta-feira"}, {"thursday", "quinta-feira"}, {"friday", "sexta-feira"},
    {"saturday", "sábado"}};

// Mostly short numbers, some long: the number of digits is drawn first.
int64_t draw_number(Draw& draw) {
  constexpr int64_t kBounds[] = {20, 100, 100, 1000, 1000, 10000, 100000};
  return draw.between(1, draw.of(kBounds) - 1);
}

std::string counted_pt(int64_t n, const Noun& noun) {
  const char* link = n % 1000000 == 0 ? " de " : " ";  // "um milhão de reais"
  return portuguese_number(n, noun.gender) + link + (n == 1 ? noun.pt : noun.pt_plural);
}

Pair counted(int64_t n, const Noun& noun) {
  return {english_number(n) + " " + (n == 1 ? noun.en : noun.en_plural), counted_pt(n, noun)};
}

Pair amount(Draw& draw) {
  const Noun& currency = draw.of(kCurrencies);
  if (draw.below(8) == 0) return counted(draw.between(1, 99) * 1000000, currency);
  return counted(draw_number(draw), currency);
}

Pair amount_with_cents(Draw& draw) {
  constexpr Noun kCent = {"cent", "cents", "centavo", "centavos", kMasculine};
  const Pair whole = counted(draw.between(1, 999), kCurrencies[draw.below(kCurrenciesWithCents)]);
  const Pair cents = counted(draw.between(1, 99), kCent);
  return {whole.english + " and " + cents.english, whole.portuguese + " e " + cents.portuguese};
}

Pair things(Draw& draw) {
  const Noun& noun = draw.of(kThings);
  const int64_t n = draw_number(draw);
  if (draw.below(2) == 0) return counted(n, noun);
  const Adjective& a = draw.of(kAdjectives);
  const bool feminine = noun.gender == kFeminine;
  const char* one = feminine ? a.feminine : a.masculine;
  const char* many = feminine ? a.feminine_plural : a.masculine_plural;
  return {fmt::format("{} {} {}", english_number(n), a.en, n == 1 ? noun.en : noun.en_plural),
          counted_pt(n, noun) + " " + (n == 1 ? one : many)};
}

const char* ordinal_ending(int day) {
  if (day / 10 == 1) return "th";
  return day % 10 == 1 ? "st" : day % 10 == 2 ? "nd" : day % 10 == 3 ? "rd" : "th";
}

// The first of a month is an ordinal in Portuguese. In words, because tokenizers that normalise
// (NFKC) turn the sign of "1º" into a letter.
std::string day_pt(unsigned day) { return day == 1 ? "primeiro" : fmt::format("{}", day); }

Pair date(Draw& draw) {
  using namespace std::chrono;
  const int64_t month = draw.below(12), year = draw.between(1900, 2049);
  const year_month_day_last last{
      std::chrono::year(static_cast<int>(year)),
      month_day_last(std::chrono::month(static_cast<unsigned>(month + 1)))};
  const auto day = static_cast<unsigned>(draw.between(1, static_cast<unsigned>(last.day())));
  const auto& [month_en, month_pt] = kMonths[month];
  const std::string en =
      fmt::format("{} {}{}", month_en, day, ordinal_ending(static_cast<int>(day)));
  const std::string pt = fmt::format("{} de {}", day_pt(day), month_pt);
  switch (draw.below(4)) {
    case 0:
      return {en, pt};
    case 1: {
      const weekday w{sys_days(last.year() / last.month() / std::chrono::day(day))};
      const auto& [weekday_en, weekday_pt] = kWeekdays[w.c_encoding()];
      return {fmt::format("{}, {}, {}", weekday_en, en, year),
              fmt::format("{}, {} de {}", weekday_pt, pt, year)};
    }
    default:
      return {fmt::format("{}, {}", en, year), fmt::format("{} de {}", pt, year)};
  }
}

// An hour from 1 to 12 in words, with the part of the day it belongs to.
struct Hour {
  int64_t hour;
  const char *en, *pt;
};
Hour draw_hour(Draw& draw) {
  switch (draw.below(3)) {
    case 0:
      return {draw.between(5, 11), "in the morning", "da manhã"};
    case 1:
      return {draw.between(1, 6), "in the afternoon", "da tarde"};
    default:
      return {draw.between(7, 11), "at night", "da noite"};
  }
}

// "half past one", "uma e meia": the part of a time that follows a preposition or a verb.
Pair time_after_hour(Draw& draw, const Hour& h) {
  const std::string hour_en = english_number(h.hour),
                    hour_pt = portuguese_number(h.hour, kFeminine);
  const int64_t minute = draw.between(2, 29);
  const std::string minute_en = minute == 15 ? "quarter" : english_number(minute);
  switch (draw.below(3)) {
    case 0:
      return {hour_en, hour_pt};
    case 1:
      return {"half past " + hour_en, hour_pt + " e meia"};
    default:
      return {minute_en + " past " + hour_en,
              hour_pt + " e " + portuguese_number(minute, kMasculine)};
  }
}

// "at half past one in the afternoon", "à uma e meia da tarde".
Pair time_at(Draw& draw) {
  const Hour h = draw_hour(draw);
  const Pair time = time_after_hour(draw, h);
  return {fmt::format("at {} {}", time.english, h.en),
          fmt::format("{} {} {}", h.hour == 1 ? "à" : "às", time.portuguese, h.pt)};
}

// "it is ten to one", "são dez para a uma"; the verb agrees with what follows it.
Pair time_is(Draw& draw) {
  const Hour h = draw_hour(draw);
  if (draw.below(2) == 0) {
    const Pair time = time_after_hour(draw, h);
    return {fmt::format("it is {} {}", time.english, h.en),
            fmt::format("{} {} {}", h.hour == 1 ? "é" : "são", time.portuguese, h.pt)};
  }
  const int64_t minute = draw.between(2, 29);
  const std::string minute_en = minute == 15 ? "quarter" : english_number(minute);
  return {fmt::format("it is {} to {} {}", minute_en, english_number(h.hour), h.en),
          fmt::format("são {} para {} {} {}", portuguese_number(minute, kMasculine),
                      h.hour == 1 ? "a" : "as", portuguese_number(h.hour, kFeminine), h.pt)};
}

Pair digital_time(Draw& draw) {
  const int64_t hour = draw.below(24), minute = draw.below(60);
  const int64_t shown = hour % 12 == 0 ? 12 : hour % 12;
  const char* half = hour < 12 ? "am" : "pm";
  const std::string pt =
      minute == 0 ? fmt::format("{}h", hour) : fmt::format("{}h{:02}", hour, minute);
  return {fmt::format("{}:{:02} {}", shown, minute, half), pt};
}

Pair ordinal(Draw& draw) {
  constexpr const char* kEnSmall[] = {"",          "first",       "second",     "third",
                                      "fourth",    "fifth",       "sixth",      "seventh",
                                      "eighth",    "ninth",       "tenth",      "eleventh",
                                      "twelfth",   "thirteenth",  "fourteenth", "fifteenth",
                                      "sixteenth", "seventeenth", "eighteenth", "nineteenth"};
  constexpr const char* kEnTens[] = {"",     "",     "twent",  "thirt", "fort",
                                     "fift", "sixt", "sevent", "eight", "ninet"};
  // Stems; the ending is o or a.
  constexpr const char* kPtUnits[] = {"",      "primeir", "segund", "terceir", "quart",
                                      "quint", "sext",    "sétim",  "oitav",   "non"};
  constexpr const char* kPtTens[] = {
      "",          "décim",       "vigésim",   "trigésim", "quadragésim", "quinquagésim",
      "sexagésim", "septuagésim", "octogésim", "nonagésim"};
  const int64_t n = draw.between(1, 99), tens = n / 10, units = n % 10;
  const Noun& noun = draw.of(kThings);
  const char* ending = noun.gender == kFeminine ? "a" : "o";
  std::string en, pt;
  if (n < 20)
    en = kEnSmall[n];
  else if (units == 0)
    en = std::string(kEnTens[tens]) + "ieth";
  else
    en = std::string(kEnTens[tens]) + "y-" + kEnSmall[units];
  if (tens > 0) pt = std::string(kPtTens[tens]) + ending;
  if (units > 0) pt += (tens > 0 ? " " : "") + std::string(kPtUnits[units]) + ending;
  return {fmt::format("the {} {}", en, noun.en), fmt::format("{} {} {}", ending, pt, noun.pt)};
}

Pair percentage(Draw& draw) {
  const int64_t whole = draw.between(0, 100), tenth = draw.below(10);
  if (tenth == 0 || whole == 100) {
    return {english_number(whole) + " percent",
            portuguese_number(whole, kMasculine) + " por cento"};
  }
  return {fmt::format("{} point {} percent", english_number(whole), english_number(tenth)),
          fmt::format("{} vírgula {} por cento", portuguese_number(whole, kMasculine),
                      portuguese_number(tenth, kMasculine))};
}

Pair sentence(Draw& draw) {
  constexpr std::pair<const char*, const char*> kBuyers[] = {
      {"she bought", "ela comprou"}, {"we saw", "nós vimos"}, {"they have", "eles têm"}};
  constexpr std::pair<const char*, const char*> kTravellers[] = {
      {"the train leaves", "o trem sai"},
      {"the shop opens", "a loja abre"},
      {"the film begins", "o filme começa"}};
  switch (draw.below(4)) {
    case 0: {
      const Noun& noun = draw.of(kThings);
      const Pair price = amount(draw);
      const char* article = noun.gender == kFeminine ? "a" : "o";
      return {fmt::format("the {} costs {}", noun.en, price.english),
              fmt::format("{} {} custa {}", article, noun.pt, price.portuguese)};
    }
    case 1: {
      const auto& [en, pt] = draw.of(kBuyers);
      const Pair what = things(draw);
      return {fmt::format("{} {}", en, what.english), fmt::format("{} {}", pt, what.portuguese)};
    }
    case 2: {
      const auto& [en, pt] = draw.of(kTravellers);
      const Pair when = time_at(draw);
      return {fmt::format("{} {}", en, when.english), fmt::format("{} {}", pt, when.portuguese)};
    }
    default: {
      const Pair span = counted(draw.between(1, 999), draw.of(kSpans));
      return {fmt::format("it took {}", span.english), fmt::format("levou {}", span.portuguese)};
    }
  }
}

Pair draw_pair(Draw& draw) {
  constexpr Pair (*kKinds[])(Draw&) = {
      amount,       amount_with_cents, things,     date,     date,     time_at, time_is,
      digital_time, ordinal,           percentage, sentence, sentence, sentence};
  return draw.of(kKinds)(draw);
}

}  // namespace

QuickstartCorpus make_quickstart_corpus(int64_t pairs, int64_t held_out, uint64_t seed) {
  constexpr int64_t kMost =
      200000;  // the grammar writes about a million phrases, the short kinds few
  if (pairs < 1 || held_out < 2 || pairs > kMost || held_out > kMost) {
    throw Error(Errc::invalid_argument, "quickstart-data",
                fmt::format("{} pairs and {} held-out pairs asked for; give 1 to {} and 2 to {}",
                            pairs, held_out, kMost, kMost));
  }
  const int64_t valid = held_out / 2;
  QuickstartCorpus corpus;
  Draw draw(seed);
  std::unordered_set<std::string> seen;  // every phrase once: the sets are disjoint by construction
  while (static_cast<int64_t>(seen.size()) < pairs + valid + held_out) {
    Pair pair = draw_pair(draw);
    if (!seen.insert(pair.english).second) continue;
    const auto index = static_cast<int64_t>(seen.size());
    (index <= held_out           ? corpus.test
     : index <= held_out + valid ? corpus.valid
                                 : corpus.train)
        .push_back(std::move(pair));
  }
  return corpus;
}

}  // namespace saturate::apps
