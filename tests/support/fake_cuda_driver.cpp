// A CUDA driver with one device, on which this process has a context.

extern "C" int cuDeviceGetCount(int* count) {
  *count = 1;
  return 0;
}

extern "C" int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = device == 0 ? 1 : 0;
  return 0;
}
