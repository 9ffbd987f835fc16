// A step's attention in pieces, which threads share out.

#pragma once

#include <string.h>

#include <algorithm>
#include <vector>

#include "handling.h"

namespace sax {
namespace {

// One piece: queries of one sequence, or of decodes that share pages; one KV head; some of the keys.
struct Piece {
  Queries queries;
  size_t head;
  int32_t begin, end;
  const size_t* places;  // of each query's sums, in vectors; null: it sees no other keys
};

inline int32_t most_seen(const Queries& queries, const Attention& step) {
  int32_t most = *std::max_element(queries.limits, queries.limits + queries.count);
  int32_t cached = static_cast<int32_t>(queries.columns * step.page_size);
  return std::clamp(most, 0, cached);
}

// Each row of a step by one order of sums: on tiles, if enough queries see the same keys, or on vectors.
inline const PageAttention& kernel_for(const Attention& step, const Queries& queries) {
  const Kernels& by = chosen();
  if (!takes_halves(step)) return by.pages;
  size_t rows = queries.count * (step.heads / step.kv_heads);
  return rows >= by.many_queries && !queries.chosen ? by.halves_of_many : by.halves;
}

// Decodes are divided into parts of their keys; those that share the pages of a part read them once.
class Pieces {
 public:
  // all: so many decodes, then blocks of prompts.
  Pieces(const Attention& step, const std::vector<Queries>& all, size_t decodes) : step_(step), all_(all) {
    for (size_t i = 0; i < all.size(); ++i) {
      int32_t seen = most_seen(all[i], step);
      if (i >= decodes || !divide(i, seen)) add(all[i], 0, seen, nullptr);
    }
    size_t parts = 0, last = 0;
    for (const Decode& each : decodes_) parts += each.end - each.first, last = std::max(last, each.end);
    rows_.reserve(parts), limits_.reserve(parts), places_.reserve(parts);  // pieces point into them
    for (size_t part = 0; part < last; ++part) add_part(part);
  }

  void attend() {
    sums_ = held<float, 6>(vectors_ * step_.value_dim);
    partials_ = held<Partial, 7>(vectors_);
    parallel(pieces_.size(), [this](size_t i) { attend_to(pieces_[i], coming(i + 1)); });
    for (const Decode& each : decodes_) {
      const Queries& of = all_[each.query];
      kernel_for(step_, of).join(step_, of.first, each.end - each.first,
                                 sums_ + each.place * step_.value_dim, partials_ + each.place);
    }
    if (chosen().release) chosen().release();  // the pool's threads do when they sleep
  }

 private:
  static constexpr size_t kMostSharing = 16;  // with more of them, threads could be without a piece

  // One that sees several parts, and where the sums of its first lie.
  struct Decode {
    size_t query, first, end, place;
  };

  // True if the keys that a decode sees are of several parts.
  bool divide(size_t query, int32_t seen) {
    size_t first = static_cast<size_t>(first_seen(step_, seen) / kKeysOfPart);
    size_t end = static_cast<size_t>((seen + kKeysOfPart - 1) / kKeysOfPart);
    if (end <= first + 1) return false;
    decodes_.push_back({query, first, end, vectors_});
    vectors_ += (end - first) * step_.heads;
    return true;
  }

  void add(const Queries& queries, int32_t begin, int32_t end, const size_t* places) {
    for (size_t head = 0; head < step_.kv_heads; ++head) pieces_.push_back({queries, head, begin, end, places});
  }

  // The pages of a part that a decode sees to its end, where they hold nothing else.
  const int32_t* pages_of(const Decode& decode, size_t part) const {
    const Queries& of = all_[decode.query];
    int32_t end = static_cast<int32_t>(part + 1) * kKeysOfPart;
    bool whole = kKeysOfPart % step_.page_size == 0 && most_seen(of, step_) >= end && !of.chosen;
    return whole ? of.table + part * (kKeysOfPart / step_.page_size) : nullptr;
  }

  void add_part(size_t part) {
    size_t bytes = kKeysOfPart / step_.page_size * sizeof(int32_t);
    std::vector<const Decode*> whole;
    for (const Decode& each : decodes_) {
      const Decode* decode = &each;
      if (part < each.first || part >= each.end) continue;
      if (pages_of(each, part)) whole.push_back(decode);
      else add_sharing(part, &decode, 1);
    }
    auto order = [&](const Decode* one, const Decode* other) {
      return memcmp(pages_of(*one, part), pages_of(*other, part), bytes);
    };
    std::stable_sort(whole.begin(), whole.end(), [&](auto one, auto other) { return order(one, other) < 0; });
    for (size_t begin = 0, end; begin < whole.size(); begin = end) {
      size_t most = std::min(whole.size(), begin + kMostSharing);
      for (end = begin + 1; end < most && !order(whole[begin], whole[end]);) ++end;
      add_sharing(part, whole.data() + begin, end - begin);
    }
  }

  // Adds a part of decodes, the pages of which are those of the first.
  void add_sharing(size_t part, const Decode* const* decodes, size_t count) {
    Queries shared = all_[decodes[0]->query];
    int32_t begin = static_cast<int32_t>(part) * kKeysOfPart, seen = most_seen(shared, step_);
    if (count > 1) {
      shared.rows = rows_.data() + rows_.size(), shared.limits = limits_.data() + limits_.size();
      shared.count = count;
    }
    add(shared, begin, std::min(seen, begin + kKeysOfPart), places_.data() + places_.size());
    for (size_t i = 0; i < count; ++i) {
      const Queries& of = all_[decodes[i]->query];
      rows_.push_back(of.first), limits_.push_back(*of.limits);
      places_.push_back(decodes[i]->place + (part - decodes[i]->first) * step_.heads);
    }
  }

  // What the thread that has the piece before most likely has next.
  Coming coming(size_t piece) const {
    if (piece >= pieces_.size()) return {};
    const Piece& of = pieces_[piece];
    int32_t first = first_seen(step_, *of.queries.limits);
    return {of.queries.table, of.head, std::max(of.begin, first), of.end};
  }

  void attend_to(const Piece& piece, const Coming& coming) const {
    auto attend = kernel_for(step_, piece.queries).attend;
    auto run = [&](float* sums, Partial* partials) {
      attend(step_, piece.queries, piece.head, piece.begin, piece.end, sums, partials, coming);
    };
    if (!piece.places) return run(nullptr, nullptr);
    size_t width = step_.value_dim, group = step_.heads / step_.kv_heads, count = piece.queries.count;
    if (count == 1) return run(sums_ + *piece.places * width, partials_ + *piece.places);
    float* sums = held<float, 13>(count * step_.heads * width);
    Partial* partials = held<Partial, 14>(count * step_.heads);
    run(sums, partials);
    for (size_t i = 0; i < count; ++i) {
      size_t from = i * step_.heads + piece.head * group, to = piece.places[i] + piece.head * group;
      std::copy_n(sums + from * width, group * width, sums_ + to * width);
      std::copy_n(partials + from, group, partials_ + to);
    }
  }

  const Attention& step_;
  const std::vector<Queries>& all_;
  std::vector<Piece> pieces_;
  std::vector<Decode> decodes_;
  std::vector<size_t> rows_, places_;  // of decodes side by side
  std::vector<int32_t> limits_;
  size_t vectors_ = 0;  // of all parts
  float* sums_ = nullptr;
  Partial* partials_ = nullptr;
};

}  // namespace
}  // namespace sax
