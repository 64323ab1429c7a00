#include "common.h"
int main() {
  load();
  part("basics", [] {
    OK(at::globalContext().hasCUDA());
    OK(at::detail::getCUDAHooks().getNumGPUs() == 2);
    auto a = at::ones({2, 2}, gpu);
    OK(a.is_cuda() && a.device() == gpu);
    auto b = a + a * 2;
    OK(close(b, at::full({2, 2}, 3.0)));
    OK(close(at::matmul(b, b), at::full({2, 2}, 18.0)));
    OK(b.sum().item<float>() == 12);
    auto x = at::randn({5, 7});
    auto g = x.to(gpu);
    OK(close(g.t().contiguous(), x.t()));
    OK(close(g.to(at::kDouble), x.to(at::kDouble)));
    OK(close(g.slice(1, 2, 6, 2), x.slice(1, 2, 6, 2)));
    OK(close(at::cat({g, g}, 1), at::cat({x, x}, 1)));
    OK(close(g.index_select(0, at::tensor({3, 1}, at::kLong).to(gpu)),
             x.index_select(0, at::tensor({3, 1}, at::kLong))));
    OK(close(g.softmax(1), x.softmax(1)));
    OK(close(at::arange(10, at::TensorOptions(gpu)), at::arange(10)));
    OK(close(std::get<0>(g.sort(1)), std::get<0>(x.sort(1))));
    OK(close(g.index({g > 0}), x.index({x > 0})));
    OK(close(g.nonzero(), x.nonzero()));
    OK(g.equal(g.clone()));
    g.add_(1);
    OK(close(g, x + 1));
    g.fill_(at::scalar_tensor(2.5f));
    OK(close(g, at::full({5, 7}, 2.5)));
    auto e = at::empty({0}, gpu);
    at::add_out(e, g, g);
    OK(close(e, at::full({5, 7}, 5.0)));
    OK(close(g.view({7, 5}).unfold(0, 2, 1), at::full({6, 5, 2}, 2.5)));
    auto idx = x.to(gpu);
    idx.index_put_({at::tensor({0, 1}, at::kLong)}, at::zeros({7}, gpu));
    OK(idx[0].sum().item<float>() == 0);
    OK(close(at::linspace(0, 1, 5, at::TensorOptions(gpu)), at::linspace(0, 1, 5)));
    OK(close(at::eye(3, at::TensorOptions(gpu)), at::eye(3)));
    OK(close(at::where(g > 0, g, -g), g));
    OK(close(x.to(gpu).to(at::kHalf).to(at::kFloat), x.to(at::kHalf).to(at::kFloat)));
    OK(close(at::linalg_inv(at::eye(3, at::TensorOptions(gpu)) * 2), at::eye(3) / 2));
    OK(close(at::einsum("ij,kj->ik", {x.to(gpu), x.to(gpu)}), x.matmul(x.t())));
    std::ostringstream s;
    s << at::ones({2}, gpu);
    OK(s.str().find("CUDAFloatType") != std::string::npos);
    OK(!at::empty({2}, at::TensorOptions(cpu)).is_pinned() &&
       at::empty({2}).pin_memory().is_pinned());
    OK(at::empty({2}, at::TensorOptions(cpu).pinned_memory(true)).is_pinned());
  });
  part("devices must agree", [] {
    bool threw = false;
    try {
      at::matmul(at::ones({2, 2}, gpu), at::ones({2, 2}));
    } catch (const c10::Error& e) {
      threw = true;
      printf("     %s\n", e.what_without_backtrace());
    }
    ok(threw, "matmul of cuda and cpu");
    threw = false;
    try {
      at::ones({2, 2}, gpu) + at::ones({2, 2}, gpu1);
    } catch (const c10::Error& e) {
      threw = true;
      printf("     %s\n", e.what_without_backtrace());
    }
    ok(threw, "add of cuda:0 and cuda:1");
    threw = false;
    try {
      at::ones({2, 2}, gpu) + at::ones({3}, gpu);
    } catch (const c10::Error& e) {
      threw = true;
      printf("     %s\n", e.what_without_backtrace());
    }
    ok(threw, "shapes that do not fit are an error of the call");
  });
  printf("late %lu, now %lu, drains %lu, items %lu, blocking copies %lu, allocations %lu\n",
         FC(fakecuda_count)(FC_DEFERRED), FC(fakecuda_count)(FC_IMMEDIATE),
         FC(fakecuda_count)(FC_DRAIN), FC(fakecuda_count)(FC_ITEM),
         FC(fakecuda_count)(FC_BLOCKING_COPY), FC(fakecuda_count)(FC_ALLOC));
  printf("%d failures\n", failures);
  return failures != 0;
}
