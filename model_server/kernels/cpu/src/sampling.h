// The choice of a token from one row of logits: engine/sampling.py says how, and
// this computes the same.

#pragma once

#include "kernels.h"
#include "lanes.h"

namespace sax::SAX_ISA {

// Loops over these vectorise: no branches, no calls.
SAX_INLINE float exp_of(float x) {
  x = x > 88.0f ? 88.0f : x < -87.0f ? -87.0f : x;
  float n = __builtin_rintf(x * 1.44269504f);
  float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float y = 1.0f / 5040.0f;
  y = y * r + 1.0f / 720.0f;
  y = y * r + 1.0f / 120.0f;
  y = y * r + 1.0f / 24.0f;
  y = y * r + 1.0f / 6.0f;
  y = y * r + 0.5f;
  y = y * r + 1.0f;
  y = y * r + 1.0f;
  return y * from_bits(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

// Twice the inverse hyperbolic tangent, for |s| below 0.18.
SAX_INLINE float twice_atanh(float s) {
  float square = s * s;
  float y = square * (1.0f / 9.0f) + 1.0f / 7.0f;
  y = y * square + 1.0f / 5.0f;
  y = y * square + 1.0f / 3.0f;
  return 2.0f * (y * square * s + s);
}

SAX_INLINE float log_of(float x) {  // of a positive number that is not subnormal
  uint32_t bits = bits_of(x);
  int32_t exponent = static_cast<int32_t>(bits >> 23) - 127;
  float part = from_bits((bits & 0x7fffffu) | 0x3f800000u);
  int32_t above = part > 1.41421356f;
  part = above ? part * 0.5f : part;
  float n = static_cast<float>(exponent + above);
  return n * 0.693147181f + twice_atanh((part - 1.0f) / (part + 1.0f));
}

// -log(1 - u) for u in (0, 1): near 0 one minus it has lost its digits.
SAX_INLINE float waiting_time(float u) {
  float near = twice_atanh(u / (2.0f - u)), far = -log_of(1.0f - u);
  return u < 0.25f ? near : far;
}

SAX_INLINE uint32_t mixed(uint32_t word) {
  word = (word ^ (word >> 16)) * 0x85EBCA6Bu;
  word = (word ^ (word >> 13)) * 0xC2B2AE35u;
  return word ^ (word >> 16);
}

constexpr size_t kRun = 256;  // numbers whose highest is found at once

SAX_INLINE float highest_of(const float* x, size_t count) {
  F most = set(-__builtin_inff());
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) most = max(load(x + i), most);
  float found = highest(most);
  for (; i < count; ++i) found = x[i] > found ? x[i] : found;
  return found;
}

// The first place of the highest number; the last place if none is a number.
SAX_INLINE size_t first_highest(const float* x, size_t count) {
  float most = highest_of(x, count);
  for (size_t run = 0; run < count; run += kRun) {
    size_t end = run + kRun < count ? run + kRun : count;
    if (!(highest_of(x + run, end - run) == most)) continue;
    for (size_t i = run; i < end; ++i) {
      if (x[i] == most) return i;
    }
  }
  return count - 1;
}

SAX_INLINE float sum_of(const float* x, size_t count) {
  double total = 0.0;  // of runs: a float would lose the small ones
  for (size_t run = 0; run < count; run += kRun) {
    size_t end = run + kRun < count ? run + kRun : count;
    F lanes = set(0.0f);
    size_t i = run;
    for (; i + kLanes <= end; i += kLanes) lanes = add(lanes, load(x + i));
    float part = sum(lanes);
    for (; i < end; ++i) part += x[i];
    total += part;
  }
  return static_cast<float>(total);
}

// The highest cut-off at or above which the measures of the weights add up to `wanted`; as bits.
static uint32_t cut_off(const float* weights, const float* measures, size_t count, float wanted) {
  uint32_t cut = 0;
  for (int bit = 30; bit >= 0; --bit) {
    uint32_t higher = cut | 1u << bit;
    float least = from_bits(higher);
    if (!(least < __builtin_inff())) continue;
    double kept = 0.0;
    for (size_t run = 0; run < count; run += kRun) {
      size_t end = run + kRun < count ? run + kRun : count;
      float part = 0.0f;
      if (measures) {
        for (size_t i = run; i < end; ++i) part += weights[i] >= least ? measures[i] : 0.0f;
      } else {
        int32_t of_run = 0;
        for (size_t i = run; i < end; ++i) of_run += weights[i] >= least;
        part = static_cast<float>(of_run);
      }
      kept += part;
    }
    if (kept >= wanted) cut = higher;
  }
  return cut;
}

// The tokens a row may be drawn from, in their order.
struct Candidates {
  float* weights;
  uint32_t* tokens;
  float* measures;  // room for one number of each
  size_t count;
};

SAX_INLINE void keep(Candidates& of, const float* by, float least) {
  size_t kept = 0;
  for (size_t i = 0; i < of.count; ++i) {
    if (!(by[i] >= least)) continue;
    of.weights[kept] = of.weights[i];
    of.tokens[kept++] = of.tokens[i];
  }
  of.count = kept;
}

// Drops what the limits drop. Returns false if they may let in a token that was left out, all of
// which weigh less than `missed` and `others` together.
static bool cut(Candidates& of, const Choice& row, float missed, double others) {
  bool complete = others <= 0.0;
  if (row.min_p > 0.0f) {
    keep(of, of.weights, row.min_p);  // of the largest weight, which is 1
    if (row.min_p >= missed) complete = true;
    if (!complete) return false;  // what is left out counts for the next limit, or not
  }
  if (complete) others = 0.0;
  if (row.top_k > 0) {
    size_t wanted = static_cast<size_t>(row.top_k);
    if (of.count >= wanted) complete = true;
    if (!complete) return false;
    if (of.count > wanted) {
      keep(of, of.weights, from_bits(cut_off(of.weights, nullptr, of.count, static_cast<float>(wanted))));
    }
  }
  if (complete) others = 0.0;
  if (row.top_p < 1.0f) {
    double held = sum_of(of.weights, of.count), wanted = row.top_p * (held + others);
    if (held < wanted && !complete) return false;
    keep(of, of.weights, from_bits(cut_off(of.weights, of.weights, of.count, static_cast<float>(wanted))));
    complete = true;
  }
  return complete;
}

// Keeps the tokens closest to the entropy (Meister et al. 2022). shares: room for one of each.
static void cut_typical(Candidates& of, float typical_p, float* shares) {
  float total = sum_of(of.weights, of.count);
  float entropy = 0.0f;
  for (size_t i = 0; i < of.count; ++i) {
    shares[i] = of.weights[i] / total;
    of.measures[i] = shares[i] > 1e-30f ? -log_of(shares[i]) : 0.0f;
    entropy += shares[i] * of.measures[i];
  }
  for (size_t i = 0; i < of.count; ++i) {
    of.measures[i] = shares[i] > 0.0f ? 1.0f / (1.0f + __builtin_fabsf(of.measures[i] - entropy)) : 0.0f;
  }
  float wanted = typical_p * sum_of(shares, of.count);
  uint32_t least = cut_off(of.measures, shares, of.count, wanted);
  keep(of, of.measures, from_bits(least ? least : 1u));
}

SAX_INLINE uint32_t winner(const Candidates& of, const Choice& row) {
  for (size_t i = 0; i < of.count; ++i) {
    uint32_t word = mixed(mixed(of.tokens[i] * 0x9E3779B9u ^ row.key[0]) + row.key[1]);
    float u = (static_cast<float>(word) + 0.5f) * 0x1p-32f;
    u = u < 1.0f ? u : 1.0f - 0x1p-24f;
    of.measures[i] = of.weights[i] / waiting_time(u);
  }
  return of.count ? of.tokens[first_highest(of.measures, of.count)] : 0;
}

// Collects all tokens that weigh at least `least`; all of them for 0.
static void collect(const float* weights, size_t vocab, float least, Candidates& into) {
  into.count = 0;
  for (size_t run = 0; run < vocab; run += kRun) {
    size_t end = run + kRun < vocab ? run + kRun : vocab;
    if (least > 0.0f && highest_of(weights + run, end - run) < least) continue;
    for (size_t i = run; i < end; ++i) {
      if (!(weights[i] >= least)) continue;
      into.weights[into.count] = weights[i];
      into.tokens[into.count++] = static_cast<uint32_t>(i);
    }
  }
}

// scratch: four numbers of each token.
static uint32_t drawn(const float* logits, size_t vocab, const Choice& row, float* scratch) {
  float* weights = scratch;
  Candidates of{scratch + vocab, reinterpret_cast<uint32_t*>(scratch + 2 * vocab), scratch + 3 * vocab, 0};
  float most = highest_of(logits, vocab);
  float temperature = row.temperature > 1e-30f ? row.temperature : 1e-30f;
  for (size_t i = 0; i < vocab; ++i) {
    float scaled = (logits[i] - most) / temperature;
    weights[i] = scaled < -87.0f ? 0.0f : exp_of(scaled);
  }
  bool limited = row.min_p > 0.0f || row.top_k > 0 || row.top_p < 1.0f;
  double total = limited ? sum_of(weights, vocab) : 0.0;
  float least = limited ? 1.0f / 16.0f : 0.0f;
  for (;;) {
    collect(weights, vocab, least, of);
    double others = total - sum_of(of.weights, of.count);
    bool everything = least <= 0.0f || of.count == vocab;
    if (cut(of, row, least, everything ? 0.0 : others > 1e-30 ? others : 1e-30)) break;
    least = least > 1e-12f ? least / 64.0f : 0.0f;
  }
  if (row.typical_p < 1.0f) cut_typical(of, row.typical_p, weights);
  return winner(of, row);
}

// The highest logits, best first, ties to the lower token.
static void likeliest(const float* logits, size_t vocab, size_t count, int32_t* tokens, float* values) {
  size_t held = 0;
  for (size_t run = 0; run < vocab; run += kRun) {
    size_t end = run + kRun < vocab ? run + kRun : vocab;
    if (held == count && !(highest_of(logits + run, end - run) > values[held - 1])) continue;
    for (size_t i = run; i < end; ++i) {
      if (held == count && !(logits[i] > values[held - 1])) continue;
      size_t at = held < count ? held++ : held - 1;
      for (; at > 0 && logits[i] > values[at - 1]; --at) {
        values[at] = values[at - 1];
        tokens[at] = tokens[at - 1];
      }
      values[at] = logits[i];
      tokens[at] = static_cast<int32_t>(i);
    }
  }
}

static void choose(const float* logits, const float* edited, size_t vocab, const Choice& row,
                   size_t tops, float* scratch, Chosen& to) {
  int32_t token = row.target;
  if (token < 0) {
    token = static_cast<int32_t>(row.temperature > 0.0f ? drawn(edited, vocab, row, scratch)
                                                        : first_highest(edited, vocab));
  }
  if (static_cast<size_t>(token) >= vocab) token = static_cast<int32_t>(vocab - 1);
  float most = highest_of(logits, vocab);
  for (size_t i = 0; i < vocab; ++i) scratch[i] = exp_of(logits[i] - most);
  float log_total = log_of(sum_of(scratch, vocab)) + most;
  *to.token = token;
  *to.logprob = logits[token] - log_total;
  *to.rank = 0;
  for (size_t i = 0; i < tops; ++i) to.top_tokens[i] = 0, to.top_logprobs[i] = 0.0f;
  if (row.tops <= 0) return;
  size_t there = tops < vocab ? tops : vocab;
  likeliest(logits, vocab, there, to.top_tokens, to.top_logprobs);
  for (size_t i = 0; i < there; ++i) to.top_logprobs[i] -= log_total;
  int32_t above = 0;
  for (size_t i = 0; i < vocab; ++i) above += logits[i] > logits[token];
  *to.rank = 1 + above;
}

}  // namespace sax::SAX_ISA
