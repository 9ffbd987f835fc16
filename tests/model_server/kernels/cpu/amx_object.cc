// Multiplies and attends with the object of amx.cc that servers run, and with that of the model, and
// compares the bits; and those of attention on tiles with those of single rows on vectors. On a machine without AMX each of its instructions raises SIGILL: it is decoded and done by
// the model, so what the compiler made of the source is tried on any machine with AVX-512 BF16.

#define SAX_ISA emulated
#define SAX_TILE_MODEL
#include "tile_model.h"

#include <signal.h>
#include <stdio.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels.h"
#include "machine.h"

namespace sax {
namespace {

// --- the unit ---------------------------------------------------------------------------------------

[[noreturn]] void give_up(const uint8_t* code) {
  fprintf(stderr, "no instruction of AMX that amx.cc uses:");
  for (int i = 0; i < 12; ++i) fprintf(stderr, " %02x", code[i]);
  fprintf(stderr, "\n");
  _exit(2);
}

// An instruction with a three-byte VEX prefix (Intel's manual, volume 2, 2.3).
struct Instruction {
  const uint8_t* end;
  int prefix, opcode, mod, reg, rm, third;
  char* address = nullptr;  // of its memory
  size_t stride = 0;        // its index register

  Instruction(const uint8_t* code, const greg_t* registers) {
    static constexpr int kPlaces[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                        REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                        REG_R12, REG_R13, REG_R14, REG_R15};
    auto value = [&](int number, bool high) { return registers[kPlaces[number | high << 3]]; };
    bool high_index = !(code[1] & 0x40), high_base = !(code[1] & 0x20);
    if (code[0] != 0xc4 || (code[1] & 0x9f) != 0x82 || code[2] & 0x84) give_up(code);
    prefix = code[2] & 3, third = ~(code[2] >> 3) & 15, opcode = code[3];
    mod = code[4] >> 6, reg = code[4] >> 3 & 7, rm = code[4] & 7;
    end = code + 5;
    if (mod == 3) return;
    greg_t base = 0;
    bool relative = mod == 0 && rm == 5, no_base = false;
    if (rm == 4) {
      int sib = *end++, index = sib >> 3 & 7;
      no_base = mod == 0 && (sib & 7) == 5;
      if (index != 4 || high_index) stride = static_cast<size_t>(value(index, high_index)) << (sib >> 6);
      if (!no_base) base = value(sib & 7, high_base);
    } else if (!relative) {
      base = value(rm, high_base);
    }
    if (mod == 1) base += static_cast<int8_t>(*end++);
    if (mod == 2 || relative || no_base) {
      int32_t distance;
      memcpy(&distance, end, sizeof distance);
      end += sizeof distance;
      base += distance;
    }
    if (relative) base += reinterpret_cast<greg_t>(end);
    address = reinterpret_cast<char*>(base);
  }

  bool is(int wanted_opcode, int wanted_prefix, bool in_memory) const {
    return opcode == wanted_opcode && prefix == wanted_prefix && (mod != 3) == in_memory;
  }
};

void emulate(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* code = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
  Instruction of(code, registers);
  if (of.is(0x49, 0, true) && of.reg == 0) emulated::_tile_loadconfig(of.address);
  else if (of.is(0x49, 0, false) && of.reg == 0 && of.rm == 0) emulated::_tile_release();
  else if (of.is(0x49, 3, false) && of.rm == 0) emulated::_tile_zero(of.reg);
  else if (of.is(0x4b, 3, true)) emulated::_tile_loadd(of.reg, of.address, of.stride);
  else if (of.is(0x4b, 2, true)) emulated::_tile_stored(of.reg, of.address, of.stride);
  else if (of.is(0x5c, 2, false)) emulated::_tile_dpbf16ps(of.reg, of.rm, of.third);
  else if (of.is(0x5e, 2, false)) emulated::_tile_dpbsud(of.reg, of.rm, of.third);
  else give_up(code);
  registers[REG_RIP] = reinterpret_cast<greg_t>(of.end);
}

// --- the products -----------------------------------------------------------------------------------

std::mt19937 bits(0);

float number() { return std::normal_distribution<float>()(bits); }

template <class Number>
std::vector<Number> many(size_t count, Number (*one)()) {
  std::vector<Number> made(count);
  for (Number& each : made) each = one();
  return made;
}

uint32_t pair() { return emulated::bf16_of(number()) | static_cast<uint32_t>(emulated::bf16_of(number())) << 16; }
uint8_t byte() { return static_cast<uint8_t>(bits()); }
uint16_t half() { return static_cast<uint16_t>(0x3000 + bits() % 0xc00); }  // of f16, 0.1 to 2

// Room for the numbers of rows, which starts at a line of the cache.
struct Room {
  std::vector<char> held;

  explicit Room(size_t size) : held(size + 64, 0x7f) {}
  char* at() { return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(held.data()) + 63) / 64 * 64); }
};

// Calls multiply(products, places of the rows' results) with either, and says whether the bits agree.
template <class Multiply>
bool agree(size_t rows, size_t outputs, Multiply multiply) {
  std::vector<float> made[2];
  const TileKernels* products[2] = {tiles_amx, tiles_amx_model};
  for (int i = 0; i < 2; ++i) {
    made[i].assign(rows * outputs, -1e30f);
    std::vector<float*> out;
    for (size_t row = 0; row < rows; ++row) out.push_back(made[i].data() + row * outputs);
    multiply(*products[i], out.data());
    products[i]->release();
  }
  return !memcmp(made[0].data(), made[1].data(), made[0].size() * sizeof(float));
}

bool plain_agrees(size_t rows, size_t inputs, size_t outputs) {
  size_t tiles = (outputs + 15) / 16, pairs = (inputs + 1) / 2;
  auto weights = many(tiles * pairs * 16, pair);
  auto x = many(rows * inputs, number);
  return agree(rows, outputs, [&](const TileKernels& products, float* const* out) {
    Room room(products.plain.size(rows, inputs));
    for (size_t row = 0; row < rows; ++row) {
      products.plain.pairs_of(x.data() + row * inputs, inputs, row, room.at());
    }
    PlainWeight weight{weights.data(), outputs, pairs};
    products.plain.multiply(weight, room.at(), rows, 0, tiles / 3, out);
    products.plain.multiply(weight, room.at(), rows, tiles / 3, tiles, out);
  });
}

bool bytes_agree(int width, size_t rows, size_t inputs, size_t outputs, size_t block) {
  size_t tiles = (outputs + 15) / 16, blocks = inputs / block;
  auto weights = many(tiles * inputs * 16 * static_cast<size_t>(width) / 8, byte);
  auto scales = many(tiles * blocks * 16, half), offsets = many(tiles * blocks * 16, half);
  auto x = many(rows * inputs, number);
  std::vector<float> units(tiles * 32, 0.01f);
  return agree(rows, outputs, [&](const TileKernels& products, float* const* out) {
    Room room(products.bytes.size(rows, inputs, block));
    std::vector<float> steps(rows);
    std::vector<BlockSum> sums(rows * blocks);
    QuantizedWeight weight{weights.data(), scales.data(), block == 32 ? offsets.data() : nullptr,
                           units.data(), outputs, inputs, block, width, false};
    ByteRows numbers{rows, inputs, block, weight.zero(), reinterpret_cast<int8_t*>(room.at()),
                     steps.data(), sums.data()};
    for (size_t row = 0; row < rows; ++row) products.bytes.bytes_of(x.data() + row * inputs, row, numbers);
    products.bytes.multiply(weight, numbers, 0, tiles, out);
  });
}

uint16_t bf16() { return emulated::bf16_of(number()); }

// Queries with two heads of one KV head, the last of which sees all tokens; of pages in their order.
struct Prompt {
  size_t queries, dim, value_dim, tokens;
  float softcap;
  int32_t window;

  static constexpr size_t kPage = 16, kHeads = 2;

  void attend(const PageAttention& by, size_t at_once, const Attention& step, const int32_t* table,
              const int32_t* limits) const {
    int32_t end = static_cast<int32_t>(tokens);
    for (size_t first = 0; first < queries; first += at_once) {
      size_t count = std::min(at_once, queries - first);
      by.attend(step, {table, limits + first, nullptr, 0, first, count, tokens / kPage}, 0, 0, end, nullptr, nullptr);
    }
  }
};

bool attention_agrees(const Prompt& of) {
  auto x = many(of.queries * Prompt::kHeads * of.dim, number);
  auto keys = many(of.tokens * of.dim, bf16), values = many(of.tokens * of.value_dim, bf16);
  std::vector<int32_t> table, limits;
  for (size_t page = 0; page < of.tokens / Prompt::kPage; ++page) table.push_back(static_cast<int32_t>(page));
  for (size_t i = 0; i < of.queries; ++i) limits.push_back(static_cast<int32_t>(of.tokens - of.queries + i + 1));
  Attention step{};
  step.queries = x.data(), step.keys = keys.data(), step.values = values.data(), step.number = Number::bf16;
  step.pages = table.size(), step.page_size = Prompt::kPage, step.heads = Prompt::kHeads, step.kv_heads = 1;
  step.key_dim = step.key_rows = of.dim, step.value_dim = of.value_dim;
  step.scale = 0.2f, step.softcap = of.softcap, step.window = of.window;
  auto made = [&](const PageAttention& by, size_t at_once) {
    std::vector<float> out(of.queries * Prompt::kHeads * of.value_dim, -1e30f);
    step.out = out.data();
    of.attend(by, at_once, step, table.data(), limits.data());
    return out;
  };
  auto wanted = made(tiles_amx->halves, 1);
  bool same = wanted == made(tiles_amx->halves_of_many, of.queries);
  same = same && wanted == made(tiles_amx->halves_of_many, 3);
  tiles_amx->release();
  same = same && wanted == made(tiles_amx_model->halves_of_many, of.queries);
  tiles_amx_model->release();
  return same && wanted == made(tiles_amx_model->halves, 1);
}

int count_differences() {
  int found = 0;
  auto note = [&](bool agrees, const char* what, size_t rows, size_t inputs, size_t block) {
    if (!agrees) printf("%s: %zu rows of %zu numbers in blocks of %zu differ\n", what, rows, inputs, block);
    found += !agrees;
  };
  for (size_t rows : {1, 3, 16, 17, 32, 33, 70, 300}) {
    for (size_t inputs : {1, 33, 64, 577, 1100}) {
      note(plain_agrees(rows, inputs, rows == 300 ? 20 : 100), "bfloat16", rows, inputs, inputs);
    }
  }
  for (size_t rows : {1, 8, 9, 16, 17, 45}) {
    for (size_t block : {16, 32, 64, 96, 576}) {
      note(bytes_agree(8, rows, 576, 50, block), "int8", rows, 576, block);
      note(bytes_agree(4, rows, 576, 50, block), "int4", rows, 576, block);
    }
  }
  note(bytes_agree(8, 3, 68, 17, 68), "int8", 3, 68, 68);
  for (const Prompt& each : {Prompt{5, 64, 64, 160, 0.0f, 0}, Prompt{70, 128, 96, 688, 0.0f, 37},
                             Prompt{20, 25, 100, 528, 3.0f, 0}, Prompt{9, 256, 256, 1040, 0.0f, 600}}) {
    note(attention_agrees(each), "attention", each.queries, each.dim, each.tokens);
  }
  return found;
}

}  // namespace
}  // namespace sax

int main() {
  const sax::Machine machine = sax::this_machine();
  if (!sax::tiles_amx || !machine.bf16) {
    puts("skipped: the compiler does not know AMX, or the machine has no AVX-512 BF16");
    return 0;
  }
  bool real = machine.amx && sax::tiles_granted();
  if (!real) {
    struct sigaction action = {};
    action.sa_sigaction = sax::emulate;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGILL, &action, nullptr);
  }
  int found = sax::count_differences();
  printf("%d differences, the unit %s\n", found, real ? "itself" : "emulated");
  return found != 0;
}
