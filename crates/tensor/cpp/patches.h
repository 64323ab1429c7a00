// The shapes of the outputs of `im2col` and `col2im` (`unfold` and `fold` in PyTorch's `nn`), which
// libtorch cannot tell without memory.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace {

// A height and a width. None is so large that their sums with sizes of tensors wrap around.
std::vector<int64_t> two_sizes(const c10::IValue& given, const char* name, int64_t least) {
  constexpr int64_t kMost = int64_t{1} << 20;
  std::vector<int64_t> sizes = given.toIntVector();
  bool fit = sizes.size() == 2 && std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) {
    return size >= least && size <= kMost;
  });
  TORCH_CHECK(fit, "argument `", name, "`: expected two numbers from ", least, " to ", kMost);
  return sizes;
}

// Sizes that lie in patches: of each of these channels a whole kernel.
int64_t in_patches(int64_t channels, const std::vector<int64_t>& kernel) {
  int64_t all = 0;
  bool large = c10::mul_overflows(channels, kernel[0] * kernel[1], &all);
  TORCH_CHECK(!large, "argument `kernel_size`: its outputs would be too large");
  return all;
}

// The patches of an image.
struct Patches {
  std::vector<int64_t> kernel, dilation, padding, stride;

  // The four arguments of an operator from this one on.
  static Patches from(const torch::jit::Stack& given, size_t first) {
    return {two_sizes(given[first], "kernel_size", 1), two_sizes(given[first + 1], "dilation", 1),
            two_sizes(given[first + 2], "padding", 0), two_sizes(given[first + 3], "stride", 1)};
  }

  // Their number in an image of this height and width.
  int64_t count(const std::vector<int64_t>& size) const {
    int64_t patches = 1;
    for (size_t i = 0; i < 2; ++i) {
      int64_t steps = size[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1;
      TORCH_CHECK(steps >= 0, "argument `kernel_size`: larger than its padded input");
      bool large = c10::mul_overflows(patches, steps / stride[i] + 1, &patches);
      TORCH_CHECK(!large, "its outputs would be too large");
    }
    return patches;
  }
};

// A batch of images or of patches, or one of them: all sizes before the last `own`.
std::vector<int64_t> batch_of(const at::Tensor& tensor, int64_t own) {
  TORCH_CHECK(tensor.dim() == own || tensor.dim() == own + 1, "expected ", own, " or ", own + 1,
              " dimensions, found ", tensor.dim());
  for (int64_t size : tensor.sizes().slice(tensor.dim() - own)) {
    TORCH_CHECK(size > 0, "expected sizes above 0, found ", tensor.sizes());
  }
  return tensor.sizes().slice(0, tensor.dim() - own).vec();
}

// [.., channels, height, width] to [.., channels * kernel, patches].
at::Tensor im2col_on_meta(const torch::jit::Stack& given) {
  at::Tensor images = given[0].toTensor();
  Patches patches = Patches::from(given, 1);
  std::vector<int64_t> sizes = batch_of(images, 3);
  sizes.push_back(in_patches(images.size(images.dim() - 3), patches.kernel));
  sizes.push_back(patches.count(images.sizes().slice(images.dim() - 2).vec()));
  return at::empty(sizes, images.options());
}

// [.., channels * kernel, patches] to [.., channels, height, width].
at::Tensor col2im_on_meta(const torch::jit::Stack& given) {
  at::Tensor columns = given[0].toTensor();
  auto size = two_sizes(given[1], "output_size", 1);
  Patches patches = Patches::from(given, 2);
  std::vector<int64_t> sizes = batch_of(columns, 2);
  int64_t kernel = in_patches(1, patches.kernel), expected = patches.count(size);
  int64_t rows = columns.size(columns.dim() - 2);
  TORCH_CHECK(rows % kernel == 0 && columns.size(columns.dim() - 1) == expected, "expected ",
              expected, " patches of whole kernels of ", kernel, ", found ", columns.sizes());
  sizes.push_back(rows / kernel);
  sizes.insert(sizes.end(), size.begin(), size.end());
  return at::empty(sizes, columns.options());
}

using OutlineFunction = at::Tensor (*)(const torch::jit::Stack&);

// The function for an operator of this name, if there is one.
OutlineFunction outline_function(const std::string& name) {
  if (name == "im2col") return im2col_on_meta;
  if (name == "col2im") return col2im_on_meta;
  return nullptr;
}

}  // namespace
