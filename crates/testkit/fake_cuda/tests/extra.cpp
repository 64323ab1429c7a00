// TorchScript, threads, tasks of others (as NCCL's), speed, and a lookup by name.
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/serialization/import.h>

#include <chrono>
#include <sstream>
#include <thread>

#include "common.h"
using at::Tensor;
static double ms() {
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}
static c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(at::kCUDA); }
int main() {
  load();
  part("TorchScript", [] {
    torch::jit::Module m("m");
    m.register_parameter("w", at::randn({3, 4}), false);
    m.register_buffer("b", at::ones({3}));
    m.define(
        "def forward(self, x):\n  h = x @ self.w.t() + self.b\n  return torch.relu(h), "
        "h.sum().item() > 0\n");
    std::stringstream s;
    m.save(s);
    auto on_cpu = torch::jit::load(s, cpu);
    s.seekg(0);
    auto on_gpu = torch::jit::load(s, gpu);
    OK(on_gpu.attr("w").toTensor().device() == gpu);
    auto x = at::randn({2, 4});
    auto a = on_cpu.forward({x}).toTuple()->elements()[0].toTensor(),
         b = on_gpu.forward({x.to(gpu)}).toTuple()->elements()[0].toTensor();
    OK(b.is_cuda() && close(a, b));
    std::stringstream t;
    on_gpu.save(t);
    OK(torch::jit::load(t).attr("w").toTensor().device() == gpu);
  });
  part("TorchScript, optimised", [] {
    torch::jit::Module m("m");
    m.define(
        "def forward(self, x):\n  y = x * 2.0 + 1.0\n  return (torch.tanh(y) * "
        "torch.sigmoid(y)).relu()\n");
    auto x = at::randn({8, 8});
    c10::NoGradGuard no;
    auto expected = (at::tanh(x * 2 + 1) * at::sigmoid(x * 2 + 1)).relu();
    bool good = true;
    for (int i = 0; i < 5; ++i) good = good && close(m.forward({x.to(gpu)}).toTensor(), expected);
    OK(good);
  });
  part("more operators", [] {
    auto x = at::randn({6, 5}), g = x.to(gpu);
    auto i = at::tensor({0, 2, 2}, at::kLong), gi = i.to(gpu);
    OK(close(g.clone().index_add_(0, gi, g.slice(0, 0, 3)),
             x.clone().index_add_(0, i, x.slice(0, 0, 3))));
    OK(close(at::bincount(gi), at::bincount(i)));
    OK(close(std::get<0>(at::_unique2(gi)), std::get<0>(at::_unique2(i))));
    OK(close(g.clone().masked_fill_(g > 0, 0), x.clone().masked_fill_(x > 0, 0)));
    OK(close(at::nan_to_num(g / 0), at::nan_to_num(x / 0)));
    OK(close(at::clamp(g, -1, 1).pow(2).sqrt(), at::clamp(x, -1, 1).pow(2).sqrt()));
    OK(close(at::one_hot(gi, 4), at::one_hot(i, 4)));
    OK(close(at::triu(at::ones({4, 4}, gpu)), at::triu(at::ones({4, 4}))));
    OK(close(std::get<1>(at::linalg_eigh(g.t().matmul(g))).abs(),
             std::get<1>(at::linalg_eigh(x.t().matmul(x))).abs(), 1e-3));
    OK(close(at::fft_rfft(g).abs(), at::fft_rfft(x).abs()));
    OK(close(at::isfinite(g).all(), at::isfinite(x).all()));
    auto found = at::zeros({1}, gpu), scale = at::full({1}, 0.5, at::TensorOptions(gpu));
    auto grad = at::ones({3}, gpu);
    at::_amp_foreach_non_finite_check_and_unscale_({grad}, found, scale);
    OK(close(grad, at::full({3}, 0.5)) && found.item<float>() == 0);
    auto mask = at::ones({5, 5}, at::kBool).tril();
    auto q = at::randn({1, 2, 5, 4});
    OK(close(at::scaled_dot_product_attention(q.to(gpu), q.to(gpu), q.to(gpu), mask.to(gpu)),
             at::scaled_dot_product_attention(q, q, q, mask)));
    OK(at::scaled_dot_product_attention(q.to(gpu), q.to(gpu), q.to(gpu), {}, 0.5).is_cuda());
    auto v = g.narrow(0, 1, 2);
    v.zero_();
    OK(g.sum(1).slice(0, 1, 3).abs().sum().item<float>() == 0);
    Tensor c = at::view_as_complex(at::randn({3, 2}, gpu));
    OK(close(at::view_as_real(c.conj().resolve_conj()).select(1, 0),
             at::view_as_real(c).select(1, 0)));
    auto r = at::empty({0}, gpu);
    r.resize_({4});
    r.fill_(2);
    r.resize_({8});
    OK(r.slice(0, 0, 4).sum().item<float>() == 8);
    auto st = at::empty({0}, gpu);
    st.set_(g.storage(), 5, {5}, {1});
    OK(st.data_ptr() == g[1].data_ptr());
    Tensor half = g.to(at::kHalf), bf = g.to(at::kBFloat16);
    OK(close((half + half).to(at::kFloat),
             (x + x).index_put({at::tensor({1, 2}, at::kLong)}, at::zeros({5})), 1e-2) &&
       close(bf.matmul(bf.t()).to(at::kFloat), g.matmul(g.t()), 1e-1));
  });
  part("threads", [] {
    std::vector<std::thread> all;
    std::atomic<int> good{0};
    for (int n = 0; n < 6; ++n)
      all.emplace_back([&, n] {
        auto d = n % 2 ? gpu1 : gpu;
        guard().setDevice(d);
        c10::StreamGuard on(n < 2 ? guard().getStream(d) : guard().getStreamFromGlobalPool(d));
        bool fine = true;
        for (int k = 0; k < 60; ++k) {
          auto w = at::full({8, 8}, 0.5, at::TensorOptions(d)).requires_grad_(true);
          auto x = at::full({4, 8}, double(n), at::TensorOptions(d));
          at::linear(x, w).relu().sum().backward();
          fine = fine && w.grad().sum().item<float>() == (n > 0 ? 64.0f * 4 * n : 0.0f);
        }
        good += fine;
      });
    for (auto& t : all) t.join();
    OK(good == 6);
  });
  part("tasks of others", [] {
    auto x = at::ones({4}, gpu);
    FC(fakecuda_set_hold)(1, 20000, 20000);
    auto y = x * 3;
    struct Sum {
      float* at;
    } s{static_cast<float*>(FC(fakecuda_host_view)(y.data_ptr()))};
    FC(fakecuda_enqueue)(
        0, 0,
        [](void* p) {
          auto* s = static_cast<Sum*>(p);
          for (int i = 0; i < 4; ++i) s->at[i] += 1;
        },
        &s);
    auto z = y * 10;
    OK(z.sum().item<float>() == 160);
    FC(fakecuda_set_hold)(1, 0, 2000);
  });
  part("speed", [] {
    for (uint32_t most : {0u, 2000u}) {
      FC(fakecuda_set_hold)(1, 0, most);
      double times[2];
      for (int on = 0; on < 2; ++on) {
        auto d = on ? gpu : cpu;
        auto w1 = at::randn({256, 64}, d).mul_(0.1).requires_grad_(true),
             w2 = at::randn({10, 256}, d).mul_(0.1).requires_grad_(true),
             x = at::randn({64, 64}, d), t = at::zeros({64}, at::TensorOptions(d).dtype(at::kLong));
        double start = 0;
        for (int i = 0; i < 220; ++i) {
          if (i == 20) start = ms();
          at::cross_entropy_loss(at::linear(at::relu(at::linear(x, w1)), w2), t).backward();
          c10::NoGradGuard no;
          w1.sub_(w1.grad() * 0.01);
          w2.sub_(w2.grad() * 0.01);
          w1.mutable_grad().zero_();
          w2.mutable_grad().zero_();
          if (i % 10 == 9) w1.sum().item<float>();
        }
        times[on] = (ms() - start) / 200;
      }
      printf(
          "     hold up to %u us: a training step takes %.3f ms on the CPU, %.3f ms on the fake "
          "GPU\n",
          most, times[0], times[1]);
    }
  });
  part("by name", [] {
    char name[32] = {};
    auto* f =
        reinterpret_cast<int (*)(char*, int, int)>(dlsym(RTLD_DEFAULT, "cudaDeviceGetPCIBusId"));
    Dl_info info;
    dladdr(reinterpret_cast<void*>(f), &info);
    printf("     cudaDeviceGetPCIBusId is in %s, gives %d \"%s\"\n", info.dli_fname, f(name, 31, 1),
           name);
  });
  printf("%d failures\n", failures);
  return failures != 0;
}
