#pragma once
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <iostream>

#include "fakecuda.h"
inline int failures = 0;
inline void ok(bool good, const char* what) {
  printf("%s %s\n", good ? "ok  " : "FAIL", what);
  fflush(stdout);
  failures += !good;
}
#define OK(x) ok((x), #x)
// Runs a part; an exception is a failure of that part alone.
inline void part(const char* name, std::function<void()> f) {
  try {
    f();
  } catch (const std::exception& e) {
    std::string s = e.what();
    s = s.substr(0, s.find("\nException raised"));
    printf("FAIL %s: %.700s\n", name, s.c_str());
    fflush(stdout);
    ++failures;
    for (int d : {0, 1})
      reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "fakecuda_clear_error"))(d);
  }
}
inline void load() {
  const char* path = getenv("FAKE") ? getenv("FAKE") : "libtorch_cuda.so";
  if (!dlopen(path, RTLD_NOW | RTLD_GLOBAL)) {
    printf("FAIL dlopen: %s\n", dlerror());
    exit(1);
  }
}
template <typename F>
F* sym(const char* name) {
  auto* p = dlsym(RTLD_DEFAULT, name);
  if (!p) {
    printf("FAIL no %s\n", name);
    exit(1);
  }
  return reinterpret_cast<F*>(p);
}
#define FC(f) (sym<decltype(f)>(#f))
inline const at::Device cpu(at::kCPU), gpu(at::kCUDA, 0), gpu1(at::kCUDA, 1);
inline bool close(const at::Tensor& a, const at::Tensor& b, double tol = 1e-5) {
  return at::allclose(a.cpu(), b.cpu(), tol, tol);
}
