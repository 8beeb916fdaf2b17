// SPDX-License-Identifier: Apache-2.0
#include "ops/collectives.h"

#include <fmt/format.h>

#include <numeric>

namespace saturate::ops {
namespace {

using parallel::Collective;
using parallel::CollectiveKind;
using Counts = std::vector<int64_t>;
// Given the gradient of what the operation wrote.
using Backward = std::function<void(Tape&, Value d_y)>;

[[noreturn]] void refuse(const char* op, const std::string& what) {
  throw Error(Errc::invalid_argument, op, what);
}

Collective collective(CollectiveKind kind, const GroupOfRanks& ranks, int64_t count) {
  return {.kind = kind, .group = ranks.group, .count = count};
}

// Records an operation that starts `c` and waits for it on its lane; its result lies in y from
// `element` on.
void record(Tape& t, const char* op, const GroupOfRanks& ranks, Collective c, Value x, Value y,
            int64_t element, Tape::BackwardFn backward) {
  const auto shape = std::make_shared<const Collective>(std::move(c));
  parallel::Communicator& communicator = *ranks.communicator;
  t.record(op, {x}, {y},
           [=, &communicator](const Run& r) {
             communicator.wait(communicator.start(*shape, r(x), r.at(y, element), r.ctx), r.ctx);
           },
           std::move(backward),
           {.kind = shape->kind == CollectiveKind::send_receive ? OperationKind::transfer
                                                                : OperationKind::collective,
            .group = shape->group.id,
            .bytes = shape->elements() * static_cast<int64_t>(size_of(shape->dtype)),
            .lane = ranks.lane,
            .collective = shape});
}

// The same with a result of its own. x is none for a receive, y (of
// `out`'s type and shape) has no columns for a send, which writes a token instead: its gradient is
// what backward() comes by.
Value record(Tape& t, const char* op, const GroupOfRanks& ranks, Collective c, Value x,
             const Tape::Info& out, Backward backward = {}) {
  const bool sends_only = out.cols == 0;
  const Value y =
      sends_only ? t.make("sent", DType::i32, 1, 1) : t.make(op, out.dtype, out.rows, out.cols);
  c.dtype = out.dtype;
  Tape::BackwardFn then;
  if (backward)
    then = [y, backward = std::move(backward)](Tape& tape) { backward(tape, tape.gradient(y)); };
  record(t, op, ranks, std::move(c), x, y, 0, std::move(then));
  if (sends_only && t.training()) t.set_gradient(y, y);
  return y;
}

Tape::Info with_rows(Tape::Info info, int64_t rows) {
  info.rows = rows;
  return info;
}

Value gather(Tape& t, const GroupOfRanks& ranks, Value x, Backward backward = {}) {
  const Tape::Info i = t.info(x);
  return record(t, "gather_rows", ranks,
                collective(CollectiveKind::all_gather, ranks, i.rows * i.cols), x,
                with_rows(i, i.rows * ranks.group.size()), std::move(backward));
}

Value scatter_sum(Tape& t, const GroupOfRanks& ranks, Value x, Backward backward = {}) {
  const Tape::Info i = t.info(x);
  const int64_t rows = i.rows / ranks.group.size();
  return record(t, "scatter_sum_rows", ranks,
                collective(CollectiveKind::reduce_scatter, ranks, rows * i.cols), x,
                with_rows(i, rows), std::move(backward));
}

Value sum(Tape& t, const GroupOfRanks& ranks, Value x, Backward backward = {}) {
  const Tape::Info i = t.info(x);
  return record(t, "all_reduce_sum", ranks,
                collective(CollectiveKind::all_reduce, ranks, i.rows * i.cols), x, i,
                std::move(backward));
}

Value exchange(Tape& t, const GroupOfRanks& ranks, Value x, const Counts& send_rows,
               const Counts& receive_rows, Backward backward = {}) {
  const Tape::Info i = t.info(x);
  Collective c = collective(CollectiveKind::all_to_all, ranks, 0);
  for (const int64_t n : send_rows) c.send_counts.push_back(n * i.cols);
  for (const int64_t n : receive_rows) c.receive_counts.push_back(n * i.cols);
  const int64_t rows = std::accumulate(receive_rows.begin(), receive_rows.end(), int64_t{0});
  return record(t, "exchange_rows", ranks, std::move(c), x, with_rows(i, rows),
                std::move(backward));
}

// To or from one position.
Collective transfer(const char* op, const GroupOfRanks& ranks, int position, int64_t sent,
                    int64_t received) {
  const int n = ranks.group.size(), mine = ranks.group.position(ranks.communicator->rank());
  if (position < 0 || position >= n || position == mine)
    refuse(op, fmt::format("position {} of a group of {} is given, and this rank is {}: another "
                           "rank of the group is needed",
                           position, n, mine));
  Collective c = collective(CollectiveKind::send_receive, ranks, 0);
  c.send_counts.resize(static_cast<size_t>(n));
  c.receive_counts.resize(static_cast<size_t>(n));
  c.send_counts[static_cast<size_t>(position)] = sent;
  c.receive_counts[static_cast<size_t>(position)] = received;
  return c;
}

Value send_to(Tape& t, const GroupOfRanks& ranks, Value x, int position, Backward backward = {}) {
  const Tape::Info i = t.info(x);
  Tape::Info nothing = i;
  nothing.cols = 0;
  return record(t, "send", ranks, transfer("send", ranks, position, i.rows * i.cols, 0), x, nothing,
                std::move(backward));
}

Value receive_from(Tape& t, const GroupOfRanks& ranks, int position, const Tape::Info& shape,
                   Backward backward = {}) {
  return record(t, "receive", ranks,
                transfer("receive", ranks, position, 0, shape.rows * shape.cols), {}, shape,
                std::move(backward));
}

}  // namespace

Value gather_rows(Tape& tape, const GroupOfRanks& ranks, Value x) {
  if (ranks.parts() == 1) return x;
  return gather(tape, ranks, x,
                [=](Tape& t, Value d_y) { t.add_gradient(x, scatter_sum(t, ranks, d_y)); });
}

Value scatter_sum_rows(Tape& tape, const GroupOfRanks& ranks, Value x) {
  if (ranks.parts() == 1) return x;
  if (tape.info(x).rows % ranks.group.size() != 0)
    refuse("scatter_sum_rows",
           fmt::format("{} rows cannot be cut into {} equal parts: give a multiple of the ranks",
                       tape.info(x).rows, ranks.group.size()));
  return scatter_sum(tape, ranks, x,
                     [=](Tape& t, Value d_y) { t.add_gradient(x, gather(t, ranks, d_y)); });
}

void scatter_sum_into(Tape& t, const GroupOfRanks& ranks, Value x, Value y, int64_t row,
                      Tape::BackwardFn backward) {
  const Tape::Info i = t.info(x);
  Collective c =
      collective(CollectiveKind::reduce_scatter, ranks, i.rows / ranks.group.size() * i.cols);
  c.dtype = i.dtype;
  record(t, "scatter_sum_rows", ranks, std::move(c), x, y, row * i.cols, std::move(backward));
}

Value all_reduce_sum(Tape& tape, const GroupOfRanks& ranks, Value x) {
  if (ranks.parts() == 1) return x;
  return sum(tape, ranks, x, [=](Tape& t, Value d_y) { t.add_gradient(x, d_y); });
}

Value copy_to_ranks(Tape& tape, const GroupOfRanks& ranks, Value x) {
  if (ranks.parts() == 1) return x;
  const Value y = tape.alias("copied_to_ranks", x);
  tape.record(
      "copy_to_ranks", {x}, {y}, [](const Run&) {},
      [=](Tape& t) { t.add_gradient(x, sum(t, ranks, t.gradient(y))); });
  return y;
}

Value exchange_rows(Tape& tape, const GroupOfRanks& ranks, Value x, Counts send_rows,
                    Counts receive_rows) {
  const int64_t rows = std::accumulate(send_rows.begin(), send_rows.end(), int64_t{0});
  if (rows != tape.info(x).rows)
    refuse("exchange_rows", fmt::format("{} rows are to be sent, but there are {}: name each once",
                                        rows, tape.info(x).rows));
  if (ranks.parts() == 1) return x;
  return exchange(tape, ranks, x, send_rows, receive_rows, [=](Tape& t, Value d_y) {
    t.add_gradient(x, exchange(t, ranks, d_y, receive_rows, send_rows));
  });
}

void send(Tape& tape, const GroupOfRanks& ranks, Value x, int position) {
  const Tape::Info shape = tape.info(x);
  send_to(tape, ranks, x, position,
          [=](Tape& t, Value) { t.add_gradient(x, receive_from(t, ranks, position, shape)); });
}

Value receive(Tape& tape, const GroupOfRanks& ranks, int position, DType dtype, int64_t rows,
              int64_t cols) {
  const Tape::Info shape{.label = "received", .dtype = dtype, .rows = rows, .cols = cols};
  return receive_from(tape, ranks, position, shape,
                      [=](Tape& t, Value d_y) { send_to(t, ranks, d_y, position); });
}

std::vector<Collective> collectives_of(const Tape& tape) {
  std::vector<Collective> list;
  for (size_t i = 0; i < tape.operations(); ++i)
    if (const auto& c = tape.operation(i).traits.collective) list.push_back(*c);
  return list;
}

}  // namespace saturate::ops
