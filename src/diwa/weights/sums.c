/* Weighted sums of many arrays, in float64.
 *
 * NumPy widens numbers in one pass and adds them up in another; here each is read once and widened
 * on its way into the sum, so that memory is the limit. The bits are NumPy's: every sum takes the
 * members in their order, and products are rounded before they are added (-ffp-contract=off).
 */
#include <float.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "double must be rounded as double"
#endif

/* How many sums are worked on at a time: they stay in the first of the caches. */
#define TILE 256
/* How far ahead of a member's numbers the next ones are asked for. Each member is left after a
 * tile, and the hardware's own guess of what comes next is given up meanwhile. */
#define AHEAD 512
#define LINE 64
/* As a number, for it may be past the end of the array, where no pointer may point. */
#define AHEAD_OF(numbers) ((const void *)((uintptr_t)(numbers) + AHEAD * sizeof *(numbers)))

#ifdef DIWA_CLONES /* one copy for each kind of processor, chosen when the library is loaded */
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

static inline double of_f32(float number) { return number; }

static inline double of_bf16(uint16_t upper_half) {
    uint32_t bits = (uint32_t)upper_half << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* sums[i] = (start + weights[0] * members[0][i] + weights[1] * members[1][i] + ...) / divisor */
#define DEFINE_SUM(NAME, TYPE, WIDENED)                                                           \
    FOR_EACH_PROCESSOR                                                                            \
    void NAME(const TYPE *const *members, const double *weights, size_t count, size_t length,     \
              double start, double divisor, double *sums) {                                       \
        size_t done = 0;                                                                          \
        for (; length - done >= TILE; done += TILE) {                                             \
            double tile[TILE];                                                                    \
            for (size_t i = 0; i < TILE; i++) tile[i] = start;                                    \
            for (size_t member = 0; member < count; member++) {                                   \
                const TYPE *numbers = members[member] + done;                                     \
                const double weight = weights[member];                                            \
                for (size_t i = 0; i < TILE; i += LINE / sizeof(TYPE))                            \
                    __builtin_prefetch(AHEAD_OF(numbers + i));                                    \
                for (size_t i = 0; i < TILE; i++) tile[i] += weight * WIDENED(numbers[i]);        \
            }                                                                                     \
            for (size_t i = 0; i < TILE; i++) sums[done + i] = tile[i] / divisor;                 \
        }                                                                                         \
        for (; done < length; done++) {                                                           \
            double sum = start;                                                                   \
            for (size_t member = 0; member < count; member++)                                     \
                sum += weights[member] * WIDENED(members[member][done]);                          \
            sums[done] = sum / divisor;                                                           \
        }                                                                                         \
    }

/* The number at the end changes with the arguments, so that no old library is mistaken for this. */
DEFINE_SUM(diwa_sum_f32_1, float, of_f32)
DEFINE_SUM(diwa_sum_bf16_1, uint16_t, of_bf16)
