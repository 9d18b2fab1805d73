// A CUDA block as threads of a CPU, so that generated kernels can be tried without a GPU: one block after the other.
#include <barrier>
#include <bit>
#include <cmath>
#include <cstddef>
#include <thread>
#include <vector>
#define EMULATED
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __restrict__

struct Three { unsigned x, y, z; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
template <class T> inline T __ldg(const T* p) { return *p; }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline int min(int a, int b) { return a < b ? a : b; }

static thread_local Three threadIdx, blockIdx;
static Three gridDim;
static std::barrier<>* block_barrier;
static std::vector<std::barrier<>*> warp_barriers;
inline void __syncthreads() { block_barrier->arrive_and_wait(); }
inline void __syncwarp() { warp_barriers[threadIdx.x / 32]->arrive_and_wait(); }

template <class Kernel>
void launch(Three grid, int threads, Kernel kernel) {
  gridDim = grid;
  block_barrier = new std::barrier<>(threads);
  warp_barriers.clear();
  for (int w = 0; w < (threads + 31) / 32; w++) warp_barriers.push_back(new std::barrier<>(min(32, threads - 32 * w)));
  std::barrier<> between(threads);
  std::vector<std::thread> all;
  for (int t = 0; t < threads; t++)
    all.emplace_back([&, t] {
      threadIdx = {(unsigned)t, 0, 0};
      for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
          for (unsigned x = 0; x < grid.x; x++) {
            blockIdx = {x, y, z};
            kernel();
            between.arrive_and_wait();
          }
    });
  for (auto& thread : all) thread.join();
}
