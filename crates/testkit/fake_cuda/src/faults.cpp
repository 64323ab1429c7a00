#include "faults.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "machine.h"

namespace fakecuda {
namespace {

struct Kind {
  const char* name;
  Effect effect;
  int code;
  const char* message;
};

// With the texts of CUDA, cuBLAS, cuDNN and libtorch.
constexpr Kind kKinds[] = {
    {"illegal-address", Effect::kBreakDevice, 700, "an illegal memory access was encountered"},
    {"launch-failure", Effect::kBreakDevice, 719, "unspecified launch failure"},
    {"assert", Effect::kBreakDevice, 710, "device-side assert triggered"},
    {"ecc", Effect::kBreakDevice, 214, "uncorrectable ECC error encountered"},
    {"cublas-alloc", Effect::kFailCall, 0,
     "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"},
    {"cudnn", Effect::kFailCall, 0,
     "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a "
     "non-contiguous input."},
    {"out-of-memory", Effect::kFailMemory, 0, "CUDA out of memory."},
};

// A number that is nothing but digits.
bool read_number(const std::string& text, uint64_t& number) {
  if (text.empty() || text.size() > 18) return false;
  if (text.find_first_not_of("0123456789") != std::string::npos) return false;
  number = strtoull(text.c_str(), nullptr, 10);
  return true;
}

// Reads `DEVICE:TASK:KIND`.
bool read_fault(const std::string& text, std::pair<int, Fault>& read) {
  size_t first = text.find(':'), second = text.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return false;
  uint64_t device, task;
  if (!read_number(text.substr(0, first), device) || device >= kMaxDevices) return false;
  if (!read_number(text.substr(first + 1, second - first - 1), task)) return false;
  auto fault = fault_of_kind(text.substr(second + 1));
  if (!fault) return false;
  fault->task = task;
  read = {int(device), *fault};
  return true;
}

}  // namespace

std::optional<Fault> fault_of_kind(const std::string& name) {
  for (const Kind& kind : kKinds)
    if (name == kind.name) return Fault{kind.effect, 0, kind.code, kind.message};
  return std::nullopt;
}

std::vector<std::pair<int, Fault>> faults_of_environment() {
  const char* all = getenv("FAKECUDA_FAIL");
  std::vector<std::pair<int, Fault>> faults;
  if (all == nullptr || *all == 0) return faults;
  std::istringstream texts(std::string(all) + ",");
  for (std::string text; std::getline(texts, text, ',');) {
    std::pair<int, Fault> fault;
    if (!read_fault(text, fault)) {
      fprintf(stderr, "fake CUDA: FAKECUDA_FAIL has `%s`, which is not DEVICE:TASK:KIND\n",
              text.c_str());
      _exit(2);
    }
    faults.push_back(std::move(fault));
  }
  return faults;
}

}  // namespace fakecuda
