// Shared by all kernels: how a lane loads and stores its images, and weights that all lanes share.
//
// Values are (users, ..., n): images lie innermost, so a lane is an image, and every load of a warp is one run of images.
typedef unsigned char byte;

__device__ __forceinline__ constexpr int up(int a, int b) { return (a + b - 1) / b; }

// The maximum, and NaN where one of them is.
__device__ __forceinline__ float larger(float a, float b) {
#ifdef EMULATED
  return a != a || a > b ? a : b;
#else
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
#endif
}

// The IMAGES images of a lane: neighbours where n is even, else a warp apart.
constexpr int APART = PAIRED ? 1 : 32;

__device__ __forceinline__ int first_image(int group, int n) {
  int lane = threadIdx.x % 32;
  if (IMAGES == 1) return min(group * 32 + lane, n - 1);
  return min(group * 64, n - 64) + (PAIRED ? 2 * lane : lane);  // the last group goes over some images again
}

__device__ __forceinline__ void load(float (&to)[IMAGES], const float* from) {
  if (IMAGES == 2 && PAIRED) {
    float2 both = __ldg((const float2*)from);
    to[0] = both.x, to[IMAGES - 1] = both.y;
  } else {
    for (int v = 0; v < IMAGES; v++) to[v] = __ldg(from + v * APART);
  }
}

__device__ __forceinline__ void load(int (&to)[IMAGES], const byte* from) {
  if (IMAGES == 2 && PAIRED) {
    int both = __ldg((const unsigned short*)from);
    to[0] = both & 255, to[IMAGES - 1] = both >> 8;
  } else {
    for (int v = 0; v < IMAGES; v++) to[v] = __ldg(from + v * APART);
  }
}

__device__ __forceinline__ void store(float* to, const float (&from)[IMAGES]) {
  if (IMAGES == 2 && PAIRED) {
    *(float2*)to = make_float2(from[0], from[IMAGES - 1]);
  } else {
    for (int v = 0; v < IMAGES; v++) to[v * APART] = from[v];
  }
}

__device__ __forceinline__ void store(byte* to, const int (&from)[IMAGES]) {
  if (IMAGES == 2 && PAIRED) {
    *(unsigned short*)to = (unsigned short)(from[0] | from[IMAGES - 1] << 8);
  } else {
    for (int v = 0; v < IMAGES; v++) to[v * APART] = (byte)from[v];
  }
}

// SIZE weights from shared memory, four at a time.
template <int SIZE>
__device__ __forceinline__ void broadcast(float (&to)[SIZE], const float* from) {
#pragma unroll
  for (int i = 0; i < SIZE; i += 4) {
    float4 four = *(const float4*)(from + i);
    to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
  }
}
