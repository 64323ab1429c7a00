// Ends with work under way.
#include <c10/core/impl/VirtualGuardImpl.h>

#include "common.h"
int main(int, char** v) {
  load();
  FC(fakecuda_set_hold)(1, v[1] ? atoi(v[1]) : 500, 3000);
  auto x = at::ones({64, 64}, gpu), p = at::empty({64, 64}).pin_memory();
  for (int i = 0; i < 200; ++i) {
    x = x.matmul(x).clamp(0, 1);
    p.copy_(x, true);
  }
  return 0;
}
