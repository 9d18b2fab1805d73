// Images put innermost: x (users, n, size) to y (users, size, n), by tiles of 32 x 32 through shared memory.
extern "C" __global__ void __launch_bounds__(256)
innermost(const float* __restrict__ x, float* __restrict__ y, int n, int size) {
  __shared__ float tile[32][33];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_image = blockIdx.x * 32, first = blockIdx.y * 32;
  x += (size_t)blockIdx.z * n * size;
  y += (size_t)blockIdx.z * n * size;
  for (int i = warp; i < 32; i += 8)
    if (first_image + i < n && first + lane < size) tile[i][lane] = x[(size_t)(first_image + i) * size + first + lane];
  __syncthreads();
  for (int i = warp; i < 32; i += 8)
    if (first + i < size && first_image + lane < n) y[(size_t)(first + i) * n + first_image + lane] = tile[lane][i];
}
