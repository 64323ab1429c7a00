#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <cstdlib>
#include <vector>

#include "launch.h"

namespace fakecuda {
using at::Tensor;

namespace {

// A seed, and how many kernels have drawn. Each kernel draws from a generator of its own, so that
// it can run late.
struct Generator final : c10::GeneratorImpl {
  uint64_t seed_ = c10::default_rng_seed_val, offset_ = 0;
  explicit Generator(c10::DeviceIndex d) : GeneratorImpl(c10::Device(c10::kCUDA, d), kCuda) {}
  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset / 4; }
  uint64_t get_offset() const override { return offset_ * 4; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom(false));
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() == 16, "RNG state is wrong size");
    auto* from = static_cast<const uint64_t*>(state.data());
    seed_ = from[0];
    offset_ = from[1] / 4;
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    Tensor state = at::empty({16}, at::TensorOptions().dtype(at::kByte));
    auto* to = static_cast<uint64_t*>(state.mutable_data_ptr());
    to[0] = seed_;
    to[1] = offset_ * 4;
    return state.getIntrusivePtr();
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }
  at::Generator draw() {
    // So that what is drawn first after a seed can be compared with the CPU's.
    static const bool as_cpu = getenv("FAKECUDA_RANDOM_AS_CPU") != nullptr;
    if (as_cpu && offset_ == 0) return ++offset_, at::detail::createCPUGenerator(seed_);
    uint64_t mixed = seed_ + 0x9e3779b97f4a7c15 * ++offset_;  // splitmix64
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    return at::detail::createCPUGenerator(mixed ^ (mixed >> 31));
  }
};

}  // namespace

at::Generator new_generator(int d) {
  return at::make_generator<Generator>(static_cast<c10::DeviceIndex>(d));
}
const at::Generator& default_generator(int d) {
  static auto* all = [] {
    auto* list = new std::vector<at::Generator>;
    for (int i = 0; i < device_count(); ++i) list->push_back(new_generator(i));
    return list;
  }();
  return all->at(d < 0 ? current_device() : d);
}
at::Generator inner_of(const std::optional<at::Generator>& g, int d) {
  at::Generator outer = g.has_value() && g->defined() ? *g : default_generator(d);
  TORCH_CHECK(outer.device().is_cuda(), "Expected a 'cuda' device type for generator but found '",
              outer.device().type(), "'");
  std::lock_guard<std::mutex> hold(outer.mutex());
  return static_cast<Generator*>(outer.unsafeGetGeneratorImpl())->draw();
}

}  // namespace fakecuda
