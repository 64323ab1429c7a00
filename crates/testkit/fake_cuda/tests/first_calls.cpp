// The first call of an operator in a process is late, too, also where nothing but the CPU's kernel
// knows the form of the results.
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "common.h"
using at::Tensor;
using List = std::vector<Tensor>;

static c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(at::kCUDA); }

// Holds work back until somebody waits for it, or for a minute.
static void hold() { FC(fakecuda_set_hold)(1, 60'000'000, 60'000'000); }
static bool is_pending() { return !guard().queryStream(guard().getStream(gpu)); }

// Whether nobody has written to the memory of a tensor since it was allocated.
static bool is_unfilled(const Tensor& t) {
  auto* bytes = static_cast<const uint8_t*>(FC(fakecuda_host_view)(t.const_data_ptr()));
  return std::all_of(bytes, bytes + t.itemsize(), [](uint8_t byte) { return byte == 0xff; });
}

// The outputs of f, which is called for the first time, come late and are the CPU's.
static void late(const char* name, const List& inputs, std::function<List(const List&)> f,
                 double tol = 1e-4) {
  part(name, [&] {
    List on_gpu;
    for (const Tensor& t : inputs) on_gpu.push_back(t.to(gpu));
    guard().synchronizeDevice(0);
    hold();
    uint64_t now = FC(fakecuda_count)(FC_IMMEDIATE), drains = FC(fakecuda_count)(FC_DRAIN);
    List outputs = f(on_gpu);
    bool is_late = is_pending() && std::all_of(outputs.begin(), outputs.end(), is_unfilled);
    TORCH_CHECK(FC(fakecuda_count)(FC_IMMEDIATE) == now, "an operator ran at once");
    TORCH_CHECK(FC(fakecuda_count)(FC_DRAIN) == drains, "the host has waited");
    TORCH_CHECK(is_late, "a result is there before anybody has waited for it");
    List expected = f(inputs);
    TORCH_CHECK(outputs.size() == expected.size());
    for (size_t i = 0; i < outputs.size(); ++i)
      TORCH_CHECK(outputs[i].is_cuda() && close(outputs[i], expected[i], tol), "result ", i,
                  " is not the CPU's");
    ok(true, name);
  });
}

// The results of f and the gradients of its arguments that have some.
static List with_gradients(const List& inputs, std::function<Tensor(const List&)> f) {
  List leaves, results;
  for (const Tensor& t : inputs) {
    bool is_leaf = at::isFloatingType(t.scalar_type());
    leaves.push_back(is_leaf ? t.detach().requires_grad_(true) : t);
  }
  Tensor out = f(leaves);
  out.backward(at::ones_like(out));
  results.push_back(out.detach());
  for (const Tensor& leaf : leaves)
    if (leaf.requires_grad()) results.push_back(leaf.grad());
  return results;
}

int main() {
  // So that the first random numbers after a seed are the CPU's.
  setenv("FAKECUDA_RANDOM_AS_CPU", "1", 1);
  load();
  at::manual_seed(3);
  auto R = [](std::vector<int64_t> s) { return at::randn(s); };
  auto labels = at::tensor({0, 2, 1, 2}, at::kLong);
  late("softmax", {R({4, 8})}, [](const List& l) { return List{at::softmax(l[0], 1)}; });
  late("layer norm", {R({4, 6}), R({6}), R({6})}, [](const List& l) {
    return with_gradients(l, [](const List& l) { return at::layer_norm(l[0], {6}, l[1], l[2]); });
  });
  late("group norm", {R({4, 6, 3, 3}), R({6}), R({6})},
       [](const List& l) { return List{at::group_norm(l[0], 2, l[1], l[2])}; });
  late("batch norm, and its running statistics", {R({4, 3, 5, 5}), R({3}), R({3})},
       [](const List& l) {
         auto m = at::zeros({3}, l[0].options()), v = at::ones({3}, l[0].options());
         return List{at::batch_norm(l[0], l[1], l[2], m, v, true, 0.1, 1e-5, true), m, v};
       });
  late("batch norm of one value for each channel", {R({1, 3}), R({3}), R({3})}, [](const List& l) {
    return List{at::batch_norm(l[0], l[1], l[2], {}, {}, true, 0.1, 1e-5, true)};
  });
  late("cross entropy", {R({4, 5}), labels}, [](const List& l) {
    return with_gradients(l, [](const List& l) { return at::cross_entropy_loss(l[0], l[1]); });
  });
  late("cross entropy of pictures", {R({2, 3, 4, 4}), at::ones({2, 4, 4}, at::kLong)},
       [](const List& l) {
         return with_gradients(l,
                               [](const List& l) { return at::cross_entropy_loss(l[0], l[1]); });
       });
  late("binary cross entropy", {at::rand({4, 6}), at::rand({4, 6})},
       [](const List& l) { return List{at::binary_cross_entropy(l[0], l[1])}; });
  late("embedding", {R({10, 6}), at::tensor({1, 3, 3, 9}, at::kLong)}, [](const List& l) {
    return with_gradients(l, [](const List& l) { return at::embedding(l[0], l[1]); });
  });
  late("conv2d", {R({2, 3, 8, 8}), R({4, 3, 3, 3}), R({4})}, [](const List& l) {
    return with_gradients(l, [](const List& l) { return at::conv2d(l[0], l[1], l[2], 1, 1); });
  });
  late("conv2d by depth", {R({2, 4, 9, 9}), R({4, 1, 3, 3}), R({4})}, [](const List& l) {
    return with_gradients(
        l, [](const List& l) { return at::conv2d(l[0], l[1], l[2], 1, 1, 1, 4); });
  });
  late("conv3d by depth", {R({2, 2, 5, 5, 5}), R({2, 1, 3, 3, 3})}, [](const List& l) {
    return List{at::conv3d(l[0], l[1], {}, 1, at::IntArrayRef(0), 1, 2)};
  });
  late("cumsum", {R({4, 6})}, [](const List& l) { return List{l[0].cumsum(1)}; });
  late("sort and topk", {R({4, 6})}, [](const List& l) {
    auto [values, places] = l[0].sort(1);
    auto [most, where] = l[0].topk(2, 1);
    return List{values, places, most, where};
  });
  late("var, roll, adaptive pool", {R({2, 4, 8, 8})}, [](const List& l) {
    return List{l[0].var(1), l[0].roll(1, 0), at::adaptive_avg_pool2d(l[0], {3, 3})};
  });
  late("rows that share memory", {R({1, 6}), labels}, [](const List& l) {
    return List{l[0].expand({4, 6}).index_select(0, l[1])};
  });
  part("an operator that writes to its argument", [] {
    auto x = at::zeros({6, 5}, gpu), value = at::ones({2, 5}, gpu);
    auto index = at::tensor({1, 4}, at::kLong).to(gpu);
    guard().synchronizeDevice(0);
    hold();
    uint64_t now = FC(fakecuda_count)(FC_IMMEDIATE);
    const Tensor& given = at::index_put_(x, {index}, value);
    OK(is_pending() && FC(fakecuda_count)(FC_IMMEDIATE) == now);
    OK(*static_cast<float*>(FC(fakecuda_host_view)(x[1].data_ptr())) == 0);
    OK(given.is_same(x));
    auto expected = at::zeros({6, 5});
    at::index_put_(expected, {index.cpu()}, at::ones({2, 5}));
    OK(close(x, expected));
  });
  part("random numbers", [] {
    at::manual_seed(7);
    Tensor expected = at::empty({50}).normal_();
    at::manual_seed(7);
    Tensor next = at::randn({3});
    at::manual_seed(7);
    hold();
    uint64_t now = FC(fakecuda_count)(FC_IMMEDIATE);
    Tensor drawn = at::empty({50}, gpu).normal_();
    OK(is_pending() && FC(fakecuda_count)(FC_IMMEDIATE) == now);
    ok(drawn.cpu().equal(expected), "a rehearsal draws nothing from the device's generator");
    ok(at::randn({3}).equal(next), "nor from the host's");
  });
  part("an operator whose shape depends on numbers", [] {
    auto x = at::tensor({0.0, 1.0, 0.0, 2.0}), on_gpu = x.to(gpu);
    hold();
    uint64_t now = FC(fakecuda_count)(FC_IMMEDIATE);
    Tensor places = at::nonzero(on_gpu);
    ok(FC(fakecuda_count)(FC_IMMEDIATE) == now + 1, "runs at once");
    OK(close(places, at::nonzero(x)));
  });
  part("mistakes", [] {
    auto x = at::ones({3, 2}, gpu);
    auto error = [](std::function<void()> f) -> std::string {
      try {
        f();
      } catch (const c10::Error& e) {
        return e.what_without_backtrace();
      }
      return "";
    };
    auto table = at::zeros({2, 2}, at::TensorOptions(gpu).dtype(at::kLong));
    ok(error([&] { at::index_select(x, 0, table); }) != "", "in shapes are errors of the call");
    OK(x.sum().item<float>() == 6);
    auto index = at::full({5}, 9, at::TensorOptions(gpu).dtype(at::kLong));
    guard().synchronizeDevice(0);
    hold();
    Tensor rows;
    ok(error([&] { rows = at::index_select(x, 0, index); }) == "", "in numbers are none");
    auto later = error([&] { rows.cpu(); });
    ok(later.find("device-side assert") != std::string::npos, "the kernel finds them");
    FC(fakecuda_clear_error)(0);
  });
  printf("late %lu, now %lu\n", FC(fakecuda_count)(FC_DEFERRED), FC(fakecuda_count)(FC_IMMEDIATE));
  printf("%d failures\n", failures);
  return failures != 0;
}
