// Errors that the environment or a test asks for.
//
//     faults                runs itself with several environments
//     faults compute        computes on both devices until something fails, and prints the error
#include <c10/core/impl/VirtualGuardImpl.h>

#include <string>

#include "common.h"
using at::Tensor;

static c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(at::kCUDA); }

// The error of a function, with its class; empty if there is none.
static std::string what(std::function<void()> f) {
  try {
    f();
  } catch (const c10::AcceleratorError& e) {
    return "AcceleratorError " + std::to_string(e.get_error_code()) + " " +
           e.what_without_backtrace();
  } catch (const c10::OutOfMemoryError& e) {
    return std::string("OutOfMemoryError ") + e.what_without_backtrace();
  } catch (const c10::Error& e) {
    return std::string("Error ") + e.what_without_backtrace();
  }
  return "";
}

static bool starts(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

static int compute() {
  load();
  Tensor x, y;
  int steps = 0;
  auto error = what([&] {
    x = at::zeros({4}, gpu);
    y = at::zeros({4}, gpu1);
    for (; steps < 1000; ++steps) {
      x.add_(1);
      guard().synchronizeDevice(0);
      y.add_(1);
      guard().synchronizeDevice(1);
      at::empty({4}, gpu);
    }
  });
  printf("%d %s\n", steps, error.substr(0, error.find('\n')).c_str());
  bool sticky = what([&] { x.add_(1).cpu(); }) != "", other = what([&] { y.add_(1).cpu(); }) != "";
  printf("%s %s\n", sticky ? "broken" : "works", other ? "broken" : "works");
  return 0;
}

// What this program says in an environment, and its exit code.
static std::string run(const char* fail, int& code) {
  std::string command = "FAKECUDA_FAIL='" + std::string(fail) + "' /proc/" +
                        std::to_string(getpid()) + "/exe compute 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  std::string said;
  char buffer[256];
  while (size_t got = fread(buffer, 1, sizeof buffer, pipe)) said.append(buffer, got);
  int status = pclose(pipe);
  code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return said;
}

static void from_environment() {
  struct Case {
    const char *fail, *said;
  };
  // The first task on each device fills it with zeros, so task 4 is the addition of step 2.
  const Case cases[] = {
      {"", "1000 \nworks works\n"},
      {"0:4:illegal-address",
       "2 AcceleratorError 700 CUDA error: an illegal memory access was encountered\n"
       "broken works\n"},
      {"1:4:launch-failure",
       "2 AcceleratorError 719 CUDA error: unspecified launch failure\nworks broken\n"},
      {"0:4:assert",
       "2 AcceleratorError 710 CUDA error: device-side assert triggered\n"
       "broken works\n"},
      {"0:4:ecc",
       "2 AcceleratorError 214 CUDA error: uncorrectable ECC error encountered\n"
       "broken works\n"},
      {"0:4:cublas-alloc",
       "3 Error CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n"
       "works works\n"},
      {"0:4:cudnn",
       "3 Error cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a "
       "non-contiguous input.\nworks works\n"},
      {"0:4:out-of-memory",
       "2 OutOfMemoryError CUDA out of memory. Tried to allocate 16 bytes. GPU 0 has no memory for "
       "this call.\nworks works\n"},
      {"1:9:ecc,0:4:illegal-address",
       "2 AcceleratorError 700 CUDA error: an illegal memory access was encountered\n"
       "broken works\n"},
  };
  for (const Case& c : cases) {
    int code;
    std::string said = run(c.fail, code);
    if (said != c.said) printf("     %s gives: %s", c.fail, said.c_str());
    ok(code == 0 && said == c.said, *c.fail ? c.fail : "no error");
  }
  for (const char* mistyped :
       {"0:4:ilegal", "0:x:ecc", "9:1:ecc", "ecc", "0:1:", "0:4:ecc,1", "0:4:ecc,"}) {
    int code;
    std::string said = run(mistyped, code);
    bool line = said.find('\n') == said.size() - 1;
    ok(code == 2 && starts(said, "fake CUDA: FAKECUDA_FAIL has `") && line, mistyped);
  }
}

static void from_test() {
  auto x = at::zeros({4}, gpu);
  OK(FC(fakecuda_fail)(0, 1, "no such kind") == 0);
  OK(FC(fakecuda_fail)(0, 0, "out-of-memory") == 1);
  ok(starts(what([] { at::empty({4}, gpu); }), "OutOfMemoryError CUDA out of memory."),
     "the next allocation fails");
  OK(what([] { at::empty({4}, gpu); }) == "");
  OK(FC(fakecuda_fail)(0, 2, "out-of-memory") == 1);
  OK(what([&] { x.add_(1), at::empty({4}, gpu); }) == "");
  OK(starts(what([&] { x.add_(1), at::empty({4}, gpu); }), "OutOfMemoryError"));
  OK(FC(fakecuda_fail)(0, 0, "cudnn") == 1);
  OK(starts(what([&] { x.add_(1); }), "Error cuDNN error: "));
  ok(what([&] { x.add_(1); }) == "" && x.sum().item<float>() == 12,
     "the call that failed did not run");
  OK(FC(fakecuda_fail)(1, 1, "ecc") == 1);
  auto y = at::zeros({4}, gpu1);
  guard().synchronizeDevice(0);
  OK(starts(what([] { guard().synchronizeDevice(1); }),
            "AcceleratorError 214 CUDA error: uncorrectable ECC error encountered"));
  ok(what([] { at::empty({1}, gpu1); }) != "", "and it stays so");
  FC(fakecuda_clear_error)(1);
}

int main(int count, char**) {
  if (count > 1) return compute();
  part("from the environment", from_environment);
  load();
  part("from a test", from_test);
  printf("%d failures\n", failures);
  return failures != 0;
}
