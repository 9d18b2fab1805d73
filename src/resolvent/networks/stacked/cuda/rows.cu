// Rows of parameters (users, dim) to parts that lie one after the other, each (users, size), and back.
// The table has where each part begins in a row, with dim at the end, and then where it begins among the parts of one user.
__device__ __forceinline__ size_t place(const int* __restrict__ table, int count, int j, int user, int users) {
  int part = 0;
  while (j >= table[part + 1]) part++;
  const int size = table[part + 1] - table[part];
  return (size_t)users * table[count + 1 + part] + (size_t)user * size + j - table[part];
}

extern "C" __global__ void __launch_bounds__(256)
split(const float* __restrict__ rows, float* __restrict__ parts, const int* __restrict__ table, int count, int dim,
      int users, int shared) {
  const int j = blockIdx.x * 256 + threadIdx.x, user = blockIdx.y;
  if (j < dim) parts[place(table, count, j, user, users)] = rows[(shared ? 0 : (size_t)user * dim) + j];
}

extern "C" __global__ void __launch_bounds__(256)
join(float* __restrict__ rows, const float* __restrict__ parts, const int* __restrict__ table, int count, int dim,
     int users, int shared) {
  const int j = blockIdx.x * 256 + threadIdx.x, user = blockIdx.y;
  if (j < dim) rows[(size_t)user * dim + j] = parts[place(table, count, j, user, users)];
}
