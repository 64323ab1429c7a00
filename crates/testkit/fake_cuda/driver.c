// The part of NVIDIA's driver (libcuda.so.1) that our programs ask before they load libtorch_cuda.
//
// FAKECUDA_DEVICES: the number of GPUs (2). FAKECUDA_DRIVER: the newest CUDA that the driver
// supports (13000), or `broken`: it does not start.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NO_DEVICE = 100, DRIVER_MISMATCH = 803 };

// A process that names one GPU or slice by its UUID sees no other.
static int gpus(void) {
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  if (visible != NULL && (strncmp(visible, "GPU-", 4) == 0 || strncmp(visible, "MIG-", 4) == 0))
    return 1;
  const char* text = getenv("FAKECUDA_DEVICES");
  return text == NULL ? 2 : atoi(text);
}

static const char* driver(void) {
  const char* text = getenv("FAKECUDA_DRIVER");
  return text == NULL ? "13000" : text;
}

int cuInit(unsigned flags) {
  if (flags != 0) return INVALID_VALUE;
  if (strcmp(driver(), "broken") == 0) return DRIVER_MISMATCH;
  return gpus() == 0 ? NO_DEVICE : SUCCESS;
}

int cuDriverGetVersion(int* version) {
  *version = strcmp(driver(), "broken") == 0 ? 13000 : atoi(driver());
  return SUCCESS;
}

int cuDeviceGetCount(int* count) {
  *count = gpus();
  return SUCCESS;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal >= 0 && ordinal < gpus() ? SUCCESS : INVALID_VALUE;
}

// All are of one kind.
int cuDeviceGetName(char* name, int length, int device) {
  (void)device;
  snprintf(name, (size_t)length, "fake GPU");
  return SUCCESS;
}

int cuGetErrorString(int error, const char** text) {
  *text = error == DRIVER_MISMATCH
              ? "system has unsupported display driver / cuda driver combination"
              : "invalid argument";
  return SUCCESS;
}
