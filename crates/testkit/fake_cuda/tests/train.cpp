// Each computation on the CPU and on the fake GPU, forward and backward, must give the same
// numbers.
#include "common.h"
using at::Tensor;
using List = std::vector<Tensor>;
// f maps leaves to outputs; compares outputs, and gradients of a weighted sum of outputs.
static void both(const char* name, List inputs, std::function<List(List&)> f, double tol = 1e-4) {
  part(name, [&] {
    List results[2];
    for (int on = 0; on < 2; ++on) {
      List leaves;
      for (auto& t : inputs) {
        Tensor l = t.detach().clone().to(on ? gpu : cpu);
        if (at::isFloatingType(l.scalar_type())) l.requires_grad_(true);
        leaves.push_back(l);
      }
      List out = f(leaves);
      Tensor loss = at::zeros({}, on ? gpu : cpu);
      for (auto& o : out) {
        if (o.requires_grad()) {
          auto w = at::linspace(0.5, 1.5, o.numel(), at::TensorOptions(on ? gpu : cpu))
                       .view(o.sizes())
                       .to(o.scalar_type());
          loss = loss + (o * w).sum().to(at::kFloat);
        }
        TORCH_CHECK(o.is_cuda() == bool(on), "an output is on the wrong device");
      }
      if (loss.requires_grad()) loss.backward();
      for (auto& o : out) results[on].push_back(o.detach().cpu());
      for (auto& l : leaves)
        if (l.requires_grad() && l.grad().defined()) {
          TORCH_CHECK(l.grad().is_cuda() == bool(on));
          results[on].push_back(l.grad().cpu());
        }
    }
    TORCH_CHECK(results[0].size() == results[1].size(),
                "numbers of gradients differ: ", results[0].size(), " ", results[1].size());
    for (size_t i = 0; i < results[0].size(); ++i)
      TORCH_CHECK(at::allclose(results[0][i].to(at::kDouble), results[1][i].to(at::kDouble), tol,
                               tol, true),
                  "result ", i, " differs by ",
                  (results[0][i].to(at::kDouble) - results[1][i].to(at::kDouble))
                      .abs()
                      .max()
                      .item<double>());
    ok(true, name);
  });
}
int main() {
  load();
  at::manual_seed(3);
  auto R = [](std::vector<int64_t> s) { return at::randn(s); };
  auto labels = at::tensor({0, 2, 1, 2}, at::kLong);
  both("linear, relu, cross entropy", {R({4, 8}), R({5, 8}), R({5}), R({3, 5}), labels},
       [](List& l) {
         return List{at::cross_entropy_loss(
             at::linear(at::relu(at::linear(l[0], l[1], l[2])), l[3]), l[4])};
       });
  both("mse, gelu, silu, tanh, sigmoid", {R({4, 8})}, [](List& l) {
    auto x = l[0];
    return List{at::mse_loss(at::gelu(x), at::silu(x)),
                x.tanh(),
                x.sigmoid(),
                at::gelu(x, "tanh"),
                at::leaky_relu(x, 0.1),
                at::elu(x),
                at::celu(x),
                at::softplus(x),
                at::hardtanh(x),
                at::hardshrink(x),
                at::softshrink(x),
                at::log_softmax(x, 1)};
  });
  both("batch norm in training", {R({4, 3, 5, 5}), R({3}), R({3})}, [](List& l) {
    auto m = at::zeros({3}, l[0].options()), v = at::ones({3}, l[0].options());
    auto y = at::batch_norm(l[0], l[1], l[2], m, v, true, 0.1, 1e-5, true);
    return List{y, m, v};
  });
  both("batch norm in evaluation", {R({4, 3, 5, 5}), R({3}), R({3})}, [](List& l) {
    auto m = at::zeros({3}, l[0].options()), v = at::ones({3}, l[0].options());
    return List{at::batch_norm(l[0], l[1], l[2], m, v, false, 0.1, 1e-5, true)};
  });
  both("embedding", {R({10, 6}), at::tensor({1, 3, 3, 9}, at::kLong)},
       [](List& l) { return List{at::embedding(l[0], l[1])}; });
  both("layer norm", {R({4, 6}), R({6}), R({6})},
       [](List& l) { return List{at::layer_norm(l[0], {6}, l[1], l[2])}; });
  both("rms norm", {R({4, 6}), R({6})},
       [](List& l) { return List{at::rms_norm(l[0], {6}, l[1])}; });
  both("group norm", {R({4, 6, 3, 3}), R({6}), R({6})},
       [](List& l) { return List{at::group_norm(l[0], 2, l[1], l[2])}; });
  both("attention", {R({2, 3, 5, 8}), R({2, 3, 5, 8}), R({2, 3, 5, 8})},
       [](List& l) { return List{at::scaled_dot_product_attention(l[0], l[1], l[2])}; });
  both("causal attention", {R({2, 3, 5, 8}), R({2, 3, 5, 8}), R({2, 3, 5, 8})}, [](List& l) {
    return List{at::scaled_dot_product_attention(l[0], l[1], l[2], {}, 0.0, true)};
  });
  both("conv2d", {R({2, 3, 8, 8}), R({4, 3, 3, 3}), R({4})},
       [](List& l) { return List{at::conv2d(l[0], l[1], l[2], 1, 1)}; });
  both("conv2d, stride, dilation, groups", {R({2, 4, 9, 9}), R({6, 2, 3, 3}), R({6})},
       [](List& l) { return List{at::conv2d(l[0], l[1], l[2], {2, 1}, {1, 0}, {1, 2}, 2)}; });
  both("conv2d by depth", {R({2, 4, 9, 9}), R({4, 1, 3, 3}), R({4})},
       [](List& l) { return List{at::conv2d(l[0], l[1], l[2], 1, 1, 1, 4)}; });
  both("conv1d", {R({2, 4, 9}), R({6, 4, 3}), R({6})},
       [](List& l) { return List{at::conv1d(l[0], l[1], l[2])}; });
  both("conv3d", {R({2, 2, 5, 5, 5}), R({3, 2, 3, 3, 3}), R({3})},
       [](List& l) { return List{at::conv3d(l[0], l[1], l[2])}; });
  both("conv3d by depth", {R({2, 2, 5, 5, 5}), R({2, 1, 3, 3, 3}), R({2})},
       [](List& l) { return List{at::conv3d(l[0], l[1], l[2], 1, at::IntArrayRef(0), 1, 2)}; });
  both("conv transpose 2d", {R({2, 4, 5, 5}), R({4, 3, 3, 3}), R({3})},
       [](List& l) { return List{at::conv_transpose2d(l[0], l[1], l[2], 2, 1, 1)}; });
  both("pools", {R({2, 4, 8, 8})}, [](List& l) {
    return List{at::max_pool2d(l[0], 2), at::avg_pool2d(l[0], 2),
                at::adaptive_avg_pool2d(l[0], {1, 1}), at::adaptive_avg_pool2d(l[0], {3, 3}),
                at::max_pool1d(l[0].select(1, 0), 2)};
  });
  both("upsampling, pad, interpolation", {R({2, 4, 4, 4})}, [](List& l) {
    return List{at::upsample_nearest2d(l[0], {8, 8}), at::upsample_bilinear2d(l[0], {8, 8}, false),
                at::constant_pad_nd(l[0], {1, 1}), at::reflection_pad2d(l[0], {1, 1, 1, 1}),
                at::pixel_shuffle(l[0], 2)};
  });
  for (bool lstm : {true, false})
    for (bool bias : {true, false}) {
      int gates = lstm ? 4 : 3;
      List w = {R({5, 2, 3}), R({1, 2, 6}), R({1, 2, 6}), R({gates * 6, 3}), R({gates * 6, 6})};
      if (bias) {
        w.push_back(R({gates * 6}));
        w.push_back(R({gates * 6}));
      }
      both(lstm ? (bias ? "lstm" : "lstm without bias") : (bias ? "gru" : "gru without bias"), w,
           [=](List& l) {
             List p(l.begin() + 3, l.end());
             if (lstm) {
               auto [y, h, c] = at::lstm(l[0], {l[1], l[2]}, p, bias, 1, 0.0, true, false, false);
               return List{y, h, c};
             }
             auto [y, h] = at::gru(l[0], l[1], p, bias, 1, 0.0, true, false, false);
             return List{y, h};
           });
    }
  both("sums, products, norms, cumsum, max, topk, gather, scatter", {R({4, 6})}, [](List& l) {
    auto x = l[0];
    auto i = at::argsort(x, int64_t(1), false);
    return List{x.sum(1),
                x.prod(1),
                x.norm(),
                x.cumsum(1),
                std::get<0>(x.max(1)),
                std::get<0>(x.topk(2, 1)),
                x.gather(1, i),
                at::zeros_like(x).scatter(1, i, x),
                x.var(1),
                x.std(),
                x.mean(),
                at::logsumexp(x, 1),
                x.tril(),
                x.roll(1, 0),
                x.flip(0)};
  });
  both("binary cross entropy, smooth l1, kl, nll2d", {R({4, 6}), R({2, 3, 4, 4})}, [](List& l) {
    auto t = at::full({4, 6}, 0.3, l[0].options());
    return List{at::binary_cross_entropy_with_logits(l[0], t), at::smooth_l1_loss(l[0], t),
                at::huber_loss(l[0], t), at::kl_div(l[0], t),
                at::cross_entropy_loss(l[1], at::ones({2, 4, 4}, l[0].options().dtype(at::kLong)))};
  });
  both(
      "bfloat16 linear", {R({4, 8}), R({5, 8})},
      [](List& l) {
        return List{at::linear(l[0].to(at::kBFloat16), l[1].to(at::kBFloat16)).to(at::kFloat)};
      },
      2e-2);
  both(
      "half linear", {R({4, 8}), R({5, 8})},
      [](List& l) {
        return List{at::linear(l[0].to(at::kHalf), l[1].to(at::kHalf)).to(at::kFloat)};
      },
      2e-2);
  part("autocast", [&] {
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    auto y = at::linear(R({4, 8}).to(gpu), R({5, 8}).to(gpu));
    at::autocast::set_autocast_enabled(at::kCUDA, false);
    OK(y.scalar_type() == at::kHalf);
  });
  for (auto kind : {"adam", "adamw", "sgd"})
    part(kind, [&] {
      Tensor w[2];
      at::manual_seed(5);
      auto p0 = R({3, 4}), g0 = R({3, 4});
      for (int on = 0; on < 2; ++on) {
        auto place = on ? gpu : cpu;
        auto p = p0.to(place).clone(), g = g0.to(place), m = at::zeros_like(p),
             v = at::zeros_like(p);
        for (int step = 1; step < 4; ++step) {
          auto s = at::full({}, double(step), at::TensorOptions(place).dtype(at::kFloat));
          if (kind == std::string("adam"))
            at::_fused_adam_({p}, {g}, {m}, {v}, {}, {s}, 0.01, 0.9, 0.99, 0.1, 1e-8, false, false);
          else if (kind == std::string("adamw"))
            at::_fused_adamw_({p}, {g}, {m}, {v}, {}, {s}, 0.01, 0.9, 0.99, 0.1, 1e-8, false,
                              false);
          else
            at::_fused_sgd_({p}, {g}, {m}, 0.1, 0.9, 0.01, 0.0, false, false, step == 1);
        }
        w[on] = p;
      }
      ok(close(w[0], w[1]) && w[1].is_cuda() && !close(w[1], p0), kind);
      auto a = at::ones({3}, gpu), b = at::ones({2}, gpu);
      at::_foreach_add_({a, b}, 1.0);
      OK(close(a, at::full({3}, 2.0)));
      OK(at::_foreach_norm({a, b})[0].is_cuda());
    });
  part("random numbers", [&] {
    auto g = at::globalContext().defaultGenerator(gpu).clone();
    g.set_current_seed(7);
    auto a = at::empty({100}, gpu).uniform_(0, 1, g);
    g.set_current_seed(7);
    OK(a.equal(at::empty({100}, gpu).uniform_(0, 1, g)));
    OK(!a.equal(at::empty({100}, gpu).uniform_(0, 1, g)));
    auto c = at::detail::createCPUGenerator(7);
    bool threw = false;
    try {
      at::empty({2}, gpu).uniform_(0, 1, c);
    } catch (const c10::Error&) {
      threw = true;
    }
    ok(threw, "a CPU generator for a CUDA tensor");
    at::manual_seed(1);
    auto r = at::randn({50}, gpu);
    at::manual_seed(1);
    OK(r.equal(at::randn({50}, gpu)));
    at::manual_seed(1);
    auto before = at::randn({3});
    at::manual_seed(1);
    at::dropout(at::ones({100}, gpu), 0.5, true);
    at::randn({9}, gpu);
    OK(before.equal(at::randn({3})));
    auto d = at::dropout(at::ones({10000}, gpu), 0.25, true);
    OK(std::abs(d.mean().item<double>() - 1) < 0.05 &&
       std::abs((d == 0).to(at::kFloat).mean().item<double>() - 0.25) < 0.05);
    OK(at::randperm(9, at::TensorOptions(gpu).dtype(at::kLong)).sum().item<int64_t>() == 36);
    OK(at::multinomial(at::ones({5}, gpu), 3).is_cuda());
    auto x = at::ones({64}, gpu).requires_grad_(true);
    auto y = at::dropout(x, 0.5, true);
    y.sum().backward();
    OK(x.grad().equal(y.detach()));
  });
  part("training", [&] {
    at::manual_seed(2);
    auto x = R({64, 4}).to(gpu), y = (x.sum(1) > 0).to(at::kLong),
         w1 = (R({16, 4}) * 0.5).to(gpu).requires_grad_(true),
         w2 = (R({2, 16}) * 0.5).to(gpu).requires_grad_(true);
    double first = 0, last = 0;
    for (int i = 0; i < 60; ++i) {
      auto loss = at::cross_entropy_loss(at::linear(at::relu(at::linear(x, w1)), w2), y);
      loss.backward();
      c10::NoGradGuard no;
      for (auto* w : {&w1, &w2}) {
        w->sub_(w->grad() * 0.5);
        w->mutable_grad().zero_();
      }
      last = loss.item<double>();
      if (i == 0) first = last;
    }
    printf("     loss %.3f -> %.3f\n", first, last);
    OK(last < first / 3);
  });
  printf("late %lu, now %lu, drains %lu, items %lu, blocking copies %lu, allocations %lu\n",
         FC(fakecuda_count)(FC_DEFERRED), FC(fakecuda_count)(FC_IMMEDIATE),
         FC(fakecuda_count)(FC_DRAIN), FC(fakecuda_count)(FC_ITEM),
         FC(fakecuda_count)(FC_BLOCKING_COPY), FC(fakecuda_count)(FC_ALLOC));
  printf("%d failures\n", failures);
  return failures != 0;
}
