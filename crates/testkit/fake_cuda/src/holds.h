// How long tasks are held back before they run, unless somebody waits for them.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>

#include "machine.h"

namespace fakecuda {

// Times from which one is drawn, in microseconds.
struct HoldTimes {
  uint32_t low, high;
};

class Holds {
 public:
  static Holds& get() {
    static auto* holds = new Holds;
    return *holds;
  }

  // Draws the next time, from a stream's own times if it has some.
  std::chrono::microseconds next(const std::optional<HoldTimes>& own) {
    std::lock_guard<std::mutex> hold(lock_);
    auto [low, high] = own.value_or(all_);
    uint64_t random = high == 0 ? 0 : random_();
    return std::chrono::microseconds(high <= low ? high : low + random % (high - low + 1));
  }
  void set(uint64_t seed, HoldTimes times) {
    std::lock_guard<std::mutex> hold(lock_);
    random_.seed(seed);
    all_ = times;
  }

 private:
  std::mutex lock_;
  std::mt19937_64 random_{env("FAKECUDA_SEED", 1)};
  HoldTimes all_{0, uint32_t(env("FAKECUDA_HOLD_US", 2000))};
};

}  // namespace fakecuda
