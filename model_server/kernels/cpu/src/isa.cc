// The kernels for one instruction set; the build compiles this file once for each.

#include "attention.h"
#include "kernels.h"
#include "low_rank.h"
#include "paired_attention.h"
#include "products.h"
#include "rows.h"
#include "sampling.h"
#include "states.h"
#include "token_scores.h"

namespace sax {

#define SAX_TEXT_(name) #name
#define SAX_TEXT(name) SAX_TEXT_(name)
#define SAX_TABLE_(name) kernels_##name
#define SAX_TABLE(name) SAX_TABLE_(name)

// Another name where a compiler does not know the instructions: `_WITHOUT` of build.py.
#if !defined(SAX_NAME)
#define SAX_NAME SAX_ISA
#endif

#if defined(SAX_PAIRED_ATTENTION)
#define SAX_ATTEND_BF16 SAX_ISA::attend_paired
#else
#define SAX_ATTEND_BF16 SAX_ISA::attend
#endif

extern const Kernels SAX_TABLE(SAX_ISA);
const Kernels SAX_TABLE(SAX_ISA) = {
    SAX_TEXT(SAX_NAME),
    SAX_ISA::narrow,
    {SAX_ISA::pairs_size, SAX_ISA::pairs_of, SAX_ISA::plain},
    SAX_ISA::floats,
    {SAX_ISA::bytes_size, SAX_ISA::bytes_of, SAX_ISA::quantized},
    {},
    SIZE_MAX,
    {SAX_ISA::attend, SAX_ISA::join},
    {SAX_ATTEND_BF16, SAX_ISA::join},
    {},
    SIZE_MAX,
    SAX_ISA::score,
    SAX_ISA::low_rank_down,
    SAX_ISA::low_rank_up,
    SAX_ISA::rms_norm,
    SAX_ISA::layer_norm,
    SAX_ISA::gated,
    SAX_ISA::activated,
    SAX_ISA::heads,
    SAX_ISA::mix,
    SAX_ISA::curve,
    SAX_ISA::remember,
    SAX_ISA::convolve,
    SAX_ISA::dense,
    SAX_ISA::choose,
    nullptr,
};

}  // namespace sax
