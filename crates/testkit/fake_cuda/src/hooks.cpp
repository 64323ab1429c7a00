// The functions by which libtorch_cpu asks about CUDA.
#include <ATen/detail/CUDAHooksInterface.h>

#include "generator.h"
#include "runtime.h"

namespace at {

struct FakeCudaHooks final : CUDAHooksInterface {
  explicit FakeCudaHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return fakecuda::device_count() > 0; }
  bool hasCUDA() const override { return fakecuda::device_count() > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  const Generator& getDefaultGenerator(DeviceIndex d) const override {
    return fakecuda::default_generator(d);
  }
  Generator getNewGenerator(DeviceIndex d) const override {
    return fakecuda::new_generator(d < 0 ? fakecuda::current_device() : d);
  }
  Device getDeviceFromPtr(void* p) const override {
    return Device(kCUDA, static_cast<DeviceIndex>(fakecuda::device_of_pointer(p)));
  }
  bool isPinnedPtr(const void* p) const override { return fakecuda::is_pinned(p); }
  Allocator* getPinnedMemoryAllocator() const override { return fakecuda::pinned_allocator(); }
  Allocator* getCUDADeviceAllocator() const override { return fakecuda::device_allocator(); }
  DeviceIndex current_device() const override {
    return static_cast<DeviceIndex>(fakecuda::current_device());
  }
  DeviceIndex deviceCount() const override {
    return static_cast<DeviceIndex>(fakecuda::device_count());
  }
  int getNumGPUs() const override { return fakecuda::device_count(); }
  DeviceIndex getCurrentDevice() const override {
    return static_cast<DeviceIndex>(fakecuda::current_device());
  }
  void setCurrentDevice(DeviceIndex d) const override { fakecuda::set_current_device(d); }
  DeviceIndex exchangeDevice(DeviceIndex d) const override {
    auto old = getCurrentDevice();
    if (d >= 0) fakecuda::set_current_device(d);
    return old;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex d) const override { return exchangeDevice(d); }
  void deviceSynchronize(DeviceIndex d) const override {
    fakecuda::count(FC_DEVICE_SYNC);
    fakecuda::synchronize_device(d < 0 ? fakecuda::current_device() : d);
  }
  std::string showConfig() const override { return "fake CUDA"; }
};
// libtorch asks its registry for this name.
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, FakeCudaHooks)

}  // namespace at
