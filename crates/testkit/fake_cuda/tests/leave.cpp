// Ends with work under way, on streams that wait for each other.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "common.h"

// Tensors that live longer than `main`.
static std::vector<at::Tensor>& kept() {
  static std::vector<at::Tensor> tensors;
  return tensors;
}

int main(int, char** v) {
  kept();  // so that they are destroyed after the library's handler has run
  load();
  FC(fakecuda_set_hold)(1, v[1] ? atoi(v[1]) : 500, 3000);
  c10::impl::VirtualGuardImpl guard(at::kCUDA);
  auto main = guard.getStream(gpu), side = guard.getStreamFromGlobalPool(gpu);
  auto x = at::ones({64, 64}, gpu), p = at::empty({64, 64}).pin_memory();
  for (int i = 0; i < 200; ++i) {
    x = x.matmul(x).clamp(0, 1);
    p.copy_(x, true);
    c10::Event there(at::kCUDA), back(at::kCUDA);
    there.record(main);
    there.block(side);
    {
      c10::StreamGuard on(side);
      kept().push_back(x + 1);
    }
    back.record(side);
    back.block(main);
  }
  kept().push_back(p);
  return 0;
}
