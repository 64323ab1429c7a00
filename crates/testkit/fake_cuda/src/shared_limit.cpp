#include "shared_limit.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>

#include "machine.h"

namespace fakecuda {
namespace {

constexpr int kProcesses = 64;

// A process is its number and the time of its start, since numbers are used again.
struct Process {
  int64_t id;
  uint64_t start;
  bool operator==(const Process& other) const { return id == other.id && start == other.start; }
};

struct Slot {
  Process process;
  uint64_t reserved;
};

using Tables = Slot[kMaxDevices][kProcesses];

// When a process started, by /proc; 0 if it has ended.
uint64_t start_of(int64_t id) {
  if (kill(pid_t(id), 0) != 0 && errno == ESRCH) return 0;
  std::ifstream file("/proc/" + std::to_string(id) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  // The name of the program is in brackets, and may have any letters in it.
  size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string state, field;
  fields >> state;
  if (state == "Z" || state == "X") return 0;
  // The state is field 3, the start is field 22.
  for (int i = 4; i <= 21; ++i) fields >> field;
  uint64_t start = 0;
  fields >> start;
  return start;
}

// The file, mapped. One thread of one process at a time uses it.
class Shared {
 public:
  static Shared& get() {
    static auto* shared = new Shared(getenv("FAKECUDA_SHARED"));
    return *shared;
  }
  bool is_on() const { return tables_ != nullptr; }
  void lock() {
    threads_.lock();
    while (flock(file_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  void unlock() {
    flock(file_, LOCK_UN);
    threads_.unlock();
  }

  // Frees the slots of processes that have ended. Returns what others than this one reserved.
  size_t others(int device) {
    size_t sum = 0;
    for (Slot& slot : (*tables_)[device]) {
      if (slot.process.id == 0 || slot.process == own()) continue;
      if (start_of(slot.process.id) != slot.process.start) slot = {};
      sum += slot.reserved;
    }
    return sum;
  }

  // The slot of this process, or a free one, or null.
  Slot* own_slot(int device) {
    Slot* free = nullptr;
    for (Slot& slot : (*tables_)[device]) {
      if (slot.process == own()) return &slot;
      if (slot.process.id == 0 && free == nullptr) free = &slot;
    }
    if (free != nullptr) *free = {own(), 0};
    return free;
  }

 private:
  std::mutex threads_;
  int file_ = -1;
  Tables* tables_ = nullptr;

  static const Process& own() {
    static const Process process{getpid(), start_of(getpid())};
    return process;
  }

  explicit Shared(const char* name) {
    if (name == nullptr) return;
    file_ = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    void* place = MAP_FAILED;
    if (file_ >= 0 && ftruncate(file_, sizeof(Tables)) == 0)
      place = mmap(nullptr, sizeof(Tables), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (place == MAP_FAILED) {
      fprintf(stderr, "fake CUDA: FAKECUDA_SHARED=%s: %m\n", name);
      _exit(2);
    }
    tables_ = static_cast<Tables*>(place);
  }
};

// The file is there when the library is.
const bool at_load = Shared::get().is_on();

}  // namespace

bool say_reserved(int device, size_t bytes, size_t limit) {
  Shared& shared = Shared::get();
  if (!shared.is_on()) return bytes <= limit;
  std::lock_guard<Shared> hold(shared);
  size_t others = shared.others(device);
  Slot* slot = shared.own_slot(device);
  if (slot == nullptr) return false;
  // What is given back is always said, also under a limit that has become smaller.
  if (bytes > slot->reserved && others + bytes > limit) return false;
  slot->reserved = bytes;
  return true;
}

size_t reserved_by_others(int device) {
  Shared& shared = Shared::get();
  if (!shared.is_on()) return 0;
  std::lock_guard<Shared> hold(shared);
  return shared.others(device);
}

}  // namespace fakecuda
