// SPDX-License-Identifier: Apache-2.0
// Products of values on a tape and the gradients of a linear layer's operands: what linear.cpp and
// feed_forward.cpp record.
//
// Shapes    as ops/linear.h: x (rows, in), w (out, in), bias (out), y and d_y (rows, out).
// Errors    none: who records them has compared the sizes.
// Kernel    kernels/gemm/matmul.h
#pragma once
#include <cstdint>

#include "kernels/gemm/matmul_plan.h"
#include "ops/tape.h"

namespace saturate::ops {

// A product of values on a tape; `args` lacks only the pointers.
struct Product {
  Value a = {}, b = {}, c = {}, d = {}, bias = {};
  kernels::MatmulArgs args = {};
  int64_t a_element = 0, b_element = 0, d_element = 0;  // where they begin
  Value aux = {}, column_sum = {}, partial = {};        // of args.epilogue

  // `args` with addresses that are aligned as its operands' will be.
  kernels::MatmulArgs placed(const Tape& t) const;
  // `args` with the operands' addresses.
  kernels::MatmulArgs args_of(const Run& r) const;

  // The kernel for it, chosen while the list is recorded; nothing is run.
  kernels::MatmulPlan choose(const Tape& t) const;
  // The same, of a list that will run. One on parameters without memory says how much it takes and
  // never runs; weights (`w`) that are gathered before they are used lie in the arena.
  kernels::MatmulPlan plan(const Tape& t, Value w) const;

  // `adds`: to what is in column_sum.
  void run(const Run& r, const kernels::MatmulPlan& plan, bool adds = false) const;

  OperationTraits traits() const {
    return {.flops = 2.0 * static_cast<double>(args.m) * static_cast<double>(args.n * args.k)};
  }
};

// y = x w^T + bias.
Product product_of(const Tape& t, Value x, Value w, Value bias, Value y);

// Columns [first, first + count) of a value.
struct Columns {
  int64_t first = 0, count = 0;
};

// d_w = scale d_y^T x, of some columns of d_y and x; of all of them; d_bias = column sums of d_y;
// d_x = d_y w, added to x's gradient so far.
void record_weight_gradient(Tape& t, Value x, Columns of_x, Value w, Value d_y, Columns of_y,
                            float scale);
void record_weight_gradient(Tape& t, Value x, Value w, Value d_y);
void record_bias_gradient(Tape& t, Value d_y, Value bias);
void record_input_gradient(Tape& t, Value x, Value w, Value d_y);

}  // namespace saturate::ops
