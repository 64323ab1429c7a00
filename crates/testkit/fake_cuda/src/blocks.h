// The blocks of one device's memory, used and cached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "streams.h"

namespace fakecuda {

class Blocks {
 public:
  explicit Blocks(int device);

  // Takes a block for a stream. Throws OutOfMemoryError if the limit is reached.
  char* take(size_t bytes, int64_t stream);
  void free(char* block);

  // Keeps a block, once freed, until this stream has done what it is given before.
  void use_on(char* block, int64_t stream);

  // Gives all cached blocks back.
  void release_cache();

  struct Numbers {
    size_t limit, free, reserved, used, peak;
  };
  Numbers numbers();
  void reset_peak();
  void set_limit(size_t bytes);

 private:
  struct Block {
    size_t size;
    int64_t stream;
    std::set<int64_t> users;
  };
  // A freed block that other streams use.
  struct Pending {
    char* block;
    Places until;
  };

  int device_;
  std::mutex lock_;
  size_t limit_, reserved_ = 0, used_ = 0, peak_ = 0;
  std::map<char*, size_t> unused_;                                  // ranges of addresses
  std::map<std::pair<int64_t, size_t>, std::vector<char*>> cache_;  // by stream and size
  std::unordered_map<char*, Block> blocks_;
  std::vector<Pending> pending_;

  size_t free_bytes() const;
  char* reserve(size_t bytes, size_t size);
  void put_in_cache(char* block);
  void settle();
  void release();
  void unmap(char* block, size_t size);
};

Blocks& blocks_of(int device);

}  // namespace fakecuda
