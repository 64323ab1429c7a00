// Operators for which the CPU has no kernel, or draws from its own generator.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include "launch.h"
#include "operators.h"

namespace fakecuda {
using at::Tensor;

namespace {

Tensor joined(std::vector<Tensor> parts) { return at::cat(parts, 1); }

// The CPU has no kernel for depthwise convolutions alone, and its general one takes groups. It runs
// twice: for the form of the result, and later for the numbers.
Tensor depthwise(bool is_3d, const Tensor& x, const Tensor& w, const OptionalTensor& b,
                 c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                 c10::SymIntArrayRef dilation) {
  auto compute = [is_3d, stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec()](
                     const Tensor& x, const Tensor& w, const OptionalTensor& b) {
    if (is_3d) return at::conv3d_symint(x, w, b, stride, padding, dilation, x.sym_size(1));
    return at::conv2d_symint(x, w, b, stride, padding, dilation, x.sym_size(1));
  };
  bool has_bias = b && b->defined();
  int d = x.device().index();
  check(d);
  Tensor form;
  aside([&] {
    auto bias = has_bias ? std::make_optional(stand_in(*b)) : std::nullopt;
    form = compute(stand_in(x), stand_in(w), bias);
  });
  Tensor out = at::empty_strided(form.sizes(), form.strides(), x.options());
  count(FC_DEFERRED);
  launch(
      d,
      [compute, to = cpu_view(out), x = cpu_view(x), w = cpu_view(w),
       bias = has_bias ? std::make_optional(cpu_view(*b)) : std::nullopt]() mutable {
        to.copy_(compute(x, w, bias));
      },
      "depthwise convolution");
  return out;
}

}  // namespace

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p,
                                          std::optional<bool> train) {
  if (input.numel() == 0 || !train.value_or(true))
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  Tensor mask = at::empty_like(input, input.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {input * mask * (p == 1 ? 0.0 : 1.0 / (1.0 - p)), mask};
}

Tensor depthwise_2d(const Tensor& x, const Tensor& w, c10::SymIntArrayRef,
                    const OptionalTensor& bias, c10::SymIntArrayRef stride,
                    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation) {
  return depthwise(false, x, w, bias, stride, padding, dilation);
}

Tensor depthwise_3d(const Tensor& x, const Tensor& w, c10::SymIntArrayRef,
                    const OptionalTensor& bias, c10::SymIntArrayRef stride,
                    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation) {
  return depthwise(true, x, w, bias, stride, padding, dilation);
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const std::optional<Tensor>& b1,
                                             const std::optional<Tensor>& b2) {
  Tensor gates = input_gates + hidden_gates;
  if (b1 && b1->defined()) gates = gates + *b1 + *b2;
  auto parts = gates.chunk(4, 1);
  Tensor i = parts[0].sigmoid(), f = parts[1].sigmoid(), g = parts[2].tanh(),
         o = parts[3].sigmoid();
  Tensor cy = f * cx + i * g;
  return {o * cy.tanh(), cy, joined({i, f, g, o})};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& ghy,
                                                      const std::optional<Tensor>& gcy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool bias) {
  auto parts = workspace.chunk(4, 1);
  Tensor &i = parts[0], &f = parts[1], &g = parts[2], &o = parts[3];
  Tensor t = cy.tanh();
  Tensor gc = gcy && gcy->defined() ? *gcy : at::zeros_like(cy), go = at::zeros_like(cy);
  if (ghy && ghy->defined()) {
    go = *ghy * t * o * (1 - o);
    gc = gc + *ghy * o * (1 - t * t);
  }
  Tensor gates = joined({gc * g * i * (1 - i), gc * cx * f * (1 - f), gc * i * (1 - g * g), go});
  return {gates, gc * f, bias ? gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& gi, const Tensor& gh, const Tensor& hx,
                                    const std::optional<Tensor>& b1,
                                    const std::optional<Tensor>& b2) {
  Tensor a = b1 && b1->defined() ? gi + *b1 : gi, b = b2 && b2->defined() ? gh + *b2 : gh;
  auto i = a.chunk(3, 1), h = b.chunk(3, 1);
  Tensor r = (i[0] + h[0]).sigmoid(), z = (i[1] + h[1]).sigmoid(), n = (i[2] + r * h[2]).tanh();
  return {n + z * (hx - n), joined({r, z, n, hx, h[2]})};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& g,
                                                                     const Tensor& workspace,
                                                                     bool bias) {
  auto p = workspace.chunk(5, 1);
  Tensor &r = p[0], &z = p[1], &n = p[2], &hx = p[3], &hn = p[4];
  Tensor gz = g * (hx - n) * z * (1 - z), gn = g * (1 - z) * (1 - n * n),
         gr = gn * hn * r * (1 - r);
  Tensor gi = joined({gr, gz, gn}), gh = joined({gr, gz, gn * r});
  return {gi, gh, g * z, bias ? gi.sum(0) : Tensor(), bias ? gh.sum(0) : Tensor()};
}

}  // namespace fakecuda
