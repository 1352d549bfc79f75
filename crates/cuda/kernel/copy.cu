// Copies many scattered pieces of memory in one launch, for pieces too small for the copy engine.
//
// An address is in the unified address space: device memory, or host memory that is pinned or
// registered. So the kernel gathers from host to device and scatters from device to host.
//
// 1. It reads each byte of a source once, writes each byte of a destination once, and touches no
//    byte outside. It only reads the list.
// 2. Addresses and sizes may have any alignment. A piece may have no bytes, a list no pieces.
// 3. No thread depends on another: no barrier, no shared memory, no atomic operation.
// 4. The caller guarantees that no destination overlaps another destination, a source or the list,
//    and that nothing changes the list or a source before the launch has completed.
//
// Launch 4 to 8 blocks of 512 threads. A prototype with this loop and 8 blocks moved 48 GB/s from
// host to device in pieces of 16 KiB, and 51 GB/s in pieces of 32 KiB or more, which more blocks
// did not exceed (H200, PCIe 5 x16). On a high-priority stream it slowed a GEMM by 6%, and with 16
// blocks by 15%.
//
// Loads and stores have no cache hints, as in that measurement. Plain loads see what the CPU or a
// copy engine wrote before the launch. Hints for streaming and the non-coherent path
// (`ld.global.nc`) are not measured, and the latter returns stale bytes if rule 4 is broken.
//
// `python tools/gpu/ptx.py build` compiles this file to copy.ptx. With DALSEGNO_HOST it is plain
// C11, so that tests/unit/gpu runs the same code on a CPU.

#ifdef DALSEGNO_HOST

#define __global__
#define __device__ static

typedef struct {
    unsigned int x, y, z, w;
} uint4;

static struct {
    unsigned int x;
} blockIdx, gridDim, threadIdx, blockDim;

// A test compares these with the sizes of the pieces. A GPU faults on a misaligned access.
unsigned long long dalsegno_loaded_bytes, dalsegno_stored_bytes, dalsegno_misaligned_count;

static void dalsegno_note(unsigned long long address, unsigned long long bytes,
                          unsigned long long *total_bytes) {
    *total_bytes += bytes;
    dalsegno_misaligned_count += address % bytes != 0;
}

#define NOTE(pointer, total_bytes) \
    dalsegno_note((unsigned long long)(pointer), sizeof(*(pointer)), &(total_bytes))
#define LOAD(pointer) (NOTE(pointer, dalsegno_loaded_bytes), *(pointer))
#define STORE(pointer, value) (NOTE(pointer, dalsegno_stored_bytes), *(pointer) = (value))

#else

// With the assumption the compiler emits `ld.global` and `st.global`, not generic accesses.
#define GLOBAL(pointer) __builtin_assume(__isGlobal(pointer))
#define LOAD(pointer) (GLOBAL(pointer), *(pointer))
#define STORE(pointer, value) (GLOBAL(pointer), *(pointer) = (value))

#endif

#ifdef __cplusplus
extern "C" {
#endif

// An entry of the list: 24 bytes.
typedef struct {
    unsigned long long from, to, bytes;
} Piece;

// Loads that a thread has in flight before its first store. With 16 bytes each, 512 threads cover
// 32 KiB of a piece in one round trip over PCIe.
#define IN_FLIGHT 4

// Defines a function that copies `bytes` bytes with all threads of a block, one unit at a time.
// Both addresses and the size are multiples of the unit. Without an initial value, `held` would
// keep registers through the whole kernel: 72 instead of 40 registers per thread.
#define DEFINE_COPY(name, Unit)                                                           \
    __device__ void name(unsigned long long from, unsigned long long to,                  \
                         unsigned long long bytes) {                                      \
        const unsigned int stride = blockDim.x;                                           \
        const unsigned long long count = bytes / sizeof(Unit);                            \
        for (unsigned long long at = threadIdx.x; at < count; at += IN_FLIGHT * stride) { \
            const Unit *source = (const Unit *)from + at;                                 \
            Unit *target = (Unit *)to + at;                                               \
            const unsigned long long left = count - at;                                   \
            Unit held[IN_FLIGHT] = {0};                                                   \
            for (unsigned int i = 0; i < IN_FLIGHT; i++) {                                \
                if (i * stride < left) held[i] = LOAD(source + i * stride);               \
            }                                                                             \
            for (unsigned int i = 0; i < IN_FLIGHT; i++) {                                \
                if (i * stride < left) STORE(target + i * stride, held[i]);               \
            }                                                                             \
        }                                                                                 \
    }

DEFINE_COPY(copy_16, uint4)
DEFINE_COPY(copy_8, unsigned long long)
DEFINE_COPY(copy_4, unsigned int)
DEFINE_COPY(copy_2, unsigned short)
DEFINE_COPY(copy_1, unsigned char)

// Copies the first `head` and the last `tail` bytes of a piece. They are few, so one round trip
// fetches both.
__device__ void copy_edges(Piece piece, unsigned long long head, unsigned long long tail) {
    for (unsigned long long i = threadIdx.x; i < head + tail; i += blockDim.x) {
        const unsigned long long at = i < head ? i : piece.bytes - tail + (i - head);
        const unsigned char *source = (const unsigned char *)piece.from + at;
        unsigned char *target = (unsigned char *)piece.to + at;
        STORE(target, LOAD(source));
    }
}

// Copies a piece in the widest unit that divides the distance between source and destination.
// After the same head, both addresses are then multiples of the unit.
__device__ void copy_piece(Piece piece) {
    const unsigned long long distance = (piece.from ^ piece.to) | sizeof(uint4);
    const unsigned long long unit = distance & (~distance + 1);
    const unsigned long long unaligned = (~piece.to + 1) & (unit - 1);
    const unsigned long long head = unaligned < piece.bytes ? unaligned : piece.bytes;
    const unsigned long long tail = (piece.bytes - head) & (unit - 1);
    const unsigned long long from = piece.from + head, to = piece.to + head;
    const unsigned long long body = piece.bytes - head - tail;
    copy_edges(piece, head, tail);
    switch (unit) {
    case 16: copy_16(from, to, body); break;
    case 8: copy_8(from, to, body); break;
    case 4: copy_4(from, to, body); break;
    case 2: copy_2(from, to, body); break;
    default: copy_1(from, to, body); break;
    }
}

// Blocks take the pieces round robin. A thread loads its next entry before it copies the present
// piece, so that the latency of the list is hidden, also of a list in host memory.
__global__ void dalsegno_copy_pieces(const Piece *pieces, unsigned int count) {
    unsigned long long at = blockIdx.x;
    if (at >= count) return;
    Piece next = pieces[at];
    while (at < count) {
        const Piece piece = next;
        at += gridDim.x;
        if (at < count) next = pieces[at];
        copy_piece(piece);
    }
}

#ifdef __cplusplus
}
#endif

#ifdef DALSEGNO_HOST

// Runs a launch on the CPU, one thread after the other.
void dalsegno_run_on_host(const Piece *pieces, unsigned int count, unsigned int blocks,
                          unsigned int threads) {
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) {
            dalsegno_copy_pieces(pieces, count);
        }
    }
}

#endif
