// The version of CUDA's runtime, which our programs compare with the driver's.

extern "C" int cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return 0;
}
