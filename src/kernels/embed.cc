#include "kernels/embed.h"

#include "kernels/cpu/embed.h"
#include "kernels/ref/embed.h"
#include "kernels/target.h"

namespace df::kernels {

void Embed(KernelContext& context, const PackedWeight& table, std::span<const LinearSegment> segments,
           std::span<const int32_t> tokens, MatView<float> out) {
  (IsScalarTarget() ? ref::Embed : cpu::Embed)(context, table, segments, tokens, out);
}

}  // namespace df::kernels
