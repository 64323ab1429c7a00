// Streams: each is a queue of tasks with a thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

namespace fakecuda {

// Stream 0 is the default one, the others are the pool.
constexpr int kStreams = 33;

struct StreamState;
using Work = std::function<void()>;

// Places in streams that somebody waits for: one for each stream, the latest.
using Places = std::map<StreamState*, uint64_t>;

// Throws if there is no such stream.
StreamState* stream_of(int device, int64_t id);
int64_t stream_id(StreamState*);

// The current stream of this thread.
StreamState* current_stream(int device);
int64_t exchange_stream(int device, int64_t id);
int64_t next_pool_stream(int device);

// Puts a task at the end of a stream. Returns its number in the stream. Kernels and copies have a
// number on their device, too; all else has 0.
uint64_t enqueue(StreamState*, Work, const char* name, uint64_t number_on_device = 0);
uint64_t last_of(StreamState*);
bool is_done(StreamState*, uint64_t number);
bool all_done(const Places&);

// The host waits for a task. Nothing before it is held back any more.
void wait(StreamState*, uint64_t number);

// The host waits for all tasks of a stream or a device. `synchronize` throws what broke the device.
void drain(StreamState*);
void wait_for_device(int device);
void synchronize(StreamState*);
void synchronize_device(int device);

// Sets the times for which tasks of one stream are held back, in microseconds.
void hold_stream(StreamState*, uint32_t low, uint32_t high);

// All other streams of the device hold their tasks until this one is empty, unless somebody waits
// for them. -1 ends this.
void let_go_first(int device, int64_t id);

}  // namespace fakecuda
