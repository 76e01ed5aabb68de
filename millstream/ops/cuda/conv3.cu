// A 3x3x3 convolution for Hopper, bf16 in and out, float32 sums: y[t,h,w,n] = sum x[t+dt, h+dh, w+dw, c] * weight.
//
// The input comes with its rim: [T + 2, H + 2, W + 2, C], channels last. A block of three warpgroups takes tiles of ROWS x 64
// pixels of one frame. The first warpgroup copies: for each of the three frames and each slice of SLICE channels, one halo of
// (ROWS + 2) x 66 pixels and the nine taps' weights. The other two multiply: each tap reads the same halo, shifted, so it is
// fetched once for nine products. Copies run STAGES ahead of products; barriers pass stages back and forth.
//
// In shared memory 8 channels of a pixel are 16 bytes, and planes of them lie one after the other: the layout wgmma calls
// K-major without swizzle, where a shift by one pixel is a shift by 16 bytes.
// conv3.py writes wgmma.h, packs the weights [3 frames][C / SLICE][9 taps][SLICE / 8][N][8], and calls what is at the end.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdint.h>

#include "wgmma.h"

constexpr int TILE = 64, HALO = TILE + 2, TAPS = 9, WARPGROUP = 128, MULTIPLIERS = 2;

template <int C, int N, int SLICE, int ROWS, int STAGES>
struct Shape {
    static constexpr int own_rows = ROWS / MULTIPLIERS;
    static constexpr int pixels = (ROWS + 2) * HALO;
    static constexpr int plane = (pixels * 16 + 127) / 128 * 128;  // copies want 128-byte places
    static constexpr int halo = plane * (SLICE / 8);
    static constexpr int halo_copied = pixels * 16 * (SLICE / 8);
    static constexpr int weights = TAPS * (SLICE / 8) * N * 16;
    static constexpr int stage = halo + weights;
    static constexpr int slices = 3 * (C / SLICE);
    static constexpr int shared = STAGES * stage + 1024 + 256;
};

__device__ __forceinline__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(uint64_t* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}

__device__ __forceinline__ void barrier_expect(uint64_t* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint64_t* barrier, int parity) {
    asm volatile(
        "{.reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra D; bra W; D:}" ::"r"(
            shared_address(barrier)),
        "r"(parity)
        : "memory");
}

__device__ __forceinline__ void copy_box(
    void* to, const CUtensorMap* map, int channel, int column, int row, int frame, uint64_t* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2,%3,%4,%5}], [%6];" ::"r"(
            shared_address(to)),
        "l"(map), "r"(channel), "r"(column), "r"(row), "r"(frame), "r"(shared_address(barrier))
        : "memory");
}

__device__ __forceinline__ void copy_run(void* to, const void* from, int bytes, uint64_t* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// Where wgmma finds a matrix: 8 rows of 16 bytes are contiguous; `across` to the next 8 channels, `down` to the next 8 rows,
// in units of 16 bytes.
__device__ __forceinline__ uint64_t matrix(uint32_t address, uint32_t across, uint32_t down) {
    return (uint64_t)((address >> 4) & 0x3FFF) | ((uint64_t)across << 16) | ((uint64_t)down << 32);
}

struct Tile {
    int frame, row, column;
    __device__ __forceinline__ Tile(int number, int frames, int across, int rows) {
        frame = number % frames;  // neighbours in time run together: their halos are shared in the cache
        int place = number / frames;
        column = place % across * TILE;
        row = place / across * rows;
    }
};

template <class S, int C, int SLICE, int ROWS, int STAGES>
__device__ __forceinline__ void fetch(const CUtensorMap& map, const __nv_bfloat16* weights, uint8_t* stages, uint64_t* full,
                                      uint64_t* empty, int T, int across, int tiles) {
    int stage = 0, parity = 1;
    for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
        Tile tile(number, T, across, ROWS);
        for (int s = 0; s < S::slices; s++) {
            int past = s / (C / SLICE), slice = s % (C / SLICE);
            barrier_wait(empty + stage, parity);
            uint8_t* to = stages + stage * S::stage;
            barrier_expect(full + stage, S::halo_copied + S::weights);
#pragma unroll
            for (int k = 0; k < SLICE / 8; k++)
                copy_box(to + k * S::plane, &map, slice * SLICE + k * 8, tile.column, tile.row, tile.frame + past, full + stage);
            copy_run(to + S::halo, (const uint8_t*)weights + (size_t)s * S::weights, S::weights, full + stage);
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
    }
}

// One stage's nine taps onto the sums. The stage before is given back once the first tap's products are queued behind its own.
template <class S, int N, int SLICE>
__device__ __forceinline__ void multiply(float (&sums)[S::own_rows][N / 2], uint32_t halo, uint32_t weights, bool first,
                                         uint64_t* before, bool tells) {
#pragma unroll
    for (int r = 0; r < S::own_rows; r++) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) asm volatile("" : "+f"(sums[r][i])::"memory");
    }
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll 1
    for (int tap = 0; tap < TAPS; tap++) {
        int down = tap / 3, right = tap - 3 * down;
        uint32_t pixels = halo + (down * HALO + right) * 16, columns = weights + tap * (SLICE / 8) * N * 16;
#pragma unroll
        for (int k = 0; k < SLICE / 16; k++) {
            uint64_t b = matrix(columns + k * 2 * N * 16, N, 8);
#pragma unroll
            for (int r = 0; r < S::own_rows; r++)
                Wgmma<N>::add(sums[r], matrix(pixels + k * 2 * S::plane + r * HALO * 16, S::plane / 16, 8), b,
                              !(first && tap == 0 && k == 0));
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        if (tap == 0) {
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (before && tells) barrier_arrive(before);
        }
    }
}

// A warp's sums of 16 pixels: lanes trade pairs so that each stores four neighbouring channels at once.
template <int N>
__device__ __forceinline__ void store(const float (&sums)[N / 2], __nv_bfloat16* y, int column, int W, bool in_picture,
                                      int lane, int warp) {
    int quarter = lane & 3;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int pixel = column + warp * 16 + half * 8 + (lane >> 2);
        bool inside = pixel < W && in_picture;
        __nv_bfloat16* to = y + (size_t)pixel * N;
#pragma unroll
        for (int j = 0; j < N / 8; j += 2) {
            __nv_bfloat162 low = __floats2bfloat162_rn(sums[j * 4 + half * 2], sums[j * 4 + half * 2 + 1]);
            __nv_bfloat162 high = __floats2bfloat162_rn(sums[j * 4 + 4 + half * 2], sums[j * 4 + 4 + half * 2 + 1]);
            uint32_t mine = *(uint32_t*)&low, other = *(uint32_t*)&high;
            int from = (lane & ~3) | ((quarter & 1) * 2);
            uint32_t a = __shfl_sync(~0u, mine, from), b = __shfl_sync(~0u, other, from);
            uint32_t c = __shfl_sync(~0u, mine, from + 1), d = __shfl_sync(~0u, other, from + 1);
            uint2 four = make_uint2(quarter < 2 ? a : b, quarter < 2 ? c : d);
            if (inside) *(uint2*)(to + (j + (quarter >> 1)) * 8 + (quarter & 1) * 4) = four;
        }
    }
}

template <int C, int N, int SLICE, int ROWS, int STAGES>
__global__ void __launch_bounds__((1 + MULTIPLIERS) * WARPGROUP, 1)
    conv3(const __grid_constant__ CUtensorMap map, const __nv_bfloat16* __restrict__ weights, __nv_bfloat16* __restrict__ y,
          int T, int H, int W, int across, int tiles) {
    using S = Shape<C, N, SLICE, ROWS, STAGES>;
    extern __shared__ uint8_t raw[];
    uint8_t* stages = (uint8_t*)(((uintptr_t)raw + 1023) & ~(uintptr_t)1023);
    uint64_t* full = (uint64_t*)(stages + STAGES * S::stage);
    uint64_t* empty = full + STAGES;
    int warpgroup = threadIdx.x / WARPGROUP;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(full + i, 1), barrier_init(empty + i, MULTIPLIERS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();
    if (warpgroup == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) fetch<S, C, SLICE, ROWS, STAGES>(map, weights, stages, full, empty, T, across, tiles);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        int which = warpgroup - 1, thread = threadIdx.x & (WARPGROUP - 1), lane = thread & 31, warp = thread >> 5;
        float sums[S::own_rows][N / 2];
        int stage = 0, parity = 0;
        uint32_t base = shared_address(stages);
        for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
            Tile tile(number, T, across, ROWS);
            uint64_t* before = nullptr;
#pragma unroll 1
            for (int s = 0; s < S::slices; s++) {
                barrier_wait(full + stage, parity);
                uint32_t halo = base + stage * S::stage;
                multiply<S, N, SLICE>(sums, halo + which * S::own_rows * HALO * 16, halo + S::halo, s == 0, before, thread == 0);
                before = empty + stage;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
            if (thread == 0) barrier_arrive(before);
#pragma unroll
            for (int r = 0; r < S::own_rows; r++) {
#pragma unroll
                for (int i = 0; i < N / 2; i++) asm volatile("" : "+f"(sums[r][i])::"memory");
                int row = tile.row + which * S::own_rows + r;
                store<N>(sums[r], y + ((size_t)tile.frame * H + row) * W * N, tile.column, W, row < H, lane, warp);
            }
        }
    }
}

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static Encode find_encode() {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver ? (Encode)dlsym(driver, "cuTensorMapEncodeTiled") : nullptr;
}

// 0, or where it failed: -1 the driver, 1000 + the map's error, 2000 + the attribute's, otherwise the launch's.
template <int C, int N, int SLICE, int ROWS, int STAGES>
static int launch(void* x, void* weights, void* y, int T, int H, int W, void* stream) {
    using S = Shape<C, N, SLICE, ROWS, STAGES>;
    static Encode encode = find_encode();
    if (!encode) return -1;
    const cuuint64_t sizes[4] = {(cuuint64_t)C, (cuuint64_t)W + 2, (cuuint64_t)H + 2, (cuuint64_t)T + 2};
    const cuuint64_t pixel = (cuuint64_t)C * 2, strides[3] = {pixel, pixel * (W + 2), pixel * (W + 2) * (H + 2)};
    const cuuint32_t box[4] = {8, HALO, ROWS + 2, 1}, steps[4] = {1, 1, 1, 1};
    CUtensorMap map;
    CUresult mapped =
        encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, x, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (mapped) return 1000 + (int)mapped;
    auto kernel = conv3<C, N, SLICE, ROWS, STAGES>;
    cudaError_t sized = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::shared);
    if (sized) return 2000 + (int)sized;
    int device = 0, processors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    int across = (W + TILE - 1) / TILE, tiles = across * ((H + ROWS - 1) / ROWS) * T;
    int blocks = tiles < processors ? tiles : processors;
    kernel<<<blocks, (1 + MULTIPLIERS) * WARPGROUP, S::shared, (cudaStream_t)stream>>>(
        map, (const __nv_bfloat16*)weights, (__nv_bfloat16*)y, T, H, W, across, tiles);
    return (int)cudaGetLastError();
}

extern "C" int conv3_96(void* x, void* weights, void* y, int T, int H, int W, void* stream) {
    return launch<96, 96, 32, 8, 2>(x, weights, y, T, H, W, stream);
}
extern "C" int conv3_192(void* x, void* weights, void* y, int T, int H, int W, void* stream) {
    return launch<192, 192, 16, 4, 3>(x, weights, y, T, H, W, stream);
}
