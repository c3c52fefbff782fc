// AMX: sums[row][output] += rows[row][input] * codes[input / 4][4 output + input % 4]. Codes of 16 outputs and 32
// inputs are one tile as they lie, 8 lines of 64 bytes; kRowsAside rows of as many inputs are another. All are
// configured at once, by number:
//   0, 1: sums of two blocks of rows, 2, 3: theirs with the next 16 outputs    4, 5: rows    6, 7: codes
// With FORERUN_EMULATE_TILES each instruction is a function, to be tested where there are none.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>

#include "model/types.h"

namespace forerun::FORERUN_ISA {

struct alignas(64) TileConfig {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_nbytes[16] = {};
    std::uint8_t rows[16] = {};

    constexpr TileConfig() {
        for (int sums = 0; sums < 4; ++sums) set(sums, kRowsAside, 64);
        for (int x = 4; x < 6; ++x) set(x, kRowsAside, kGroup);
        for (int codes = 6; codes < 8; ++codes) set(codes, kGroup / 4, 64);
    }
    constexpr void set(int tile, int num_rows, int nbytes) {
        rows[tile] = static_cast<std::uint8_t>(num_rows);
        row_nbytes[tile] = static_cast<std::uint16_t>(nbytes);
    }
};
static_assert(sizeof(TileConfig) == 64);

#ifdef FORERUN_EMULATE_TILES

struct EmulatedTiles {
    TileConfig config;
    bool is_configured = false;
    std::uint8_t bytes[8][16][64];

    void configure(const TileConfig& given) {
        config = given;
        is_configured = true;
        std::memset(bytes, 0, sizeof bytes);
    }
    void release() { is_configured = false; }
    void need(bool is_right) const {
        if (!is_configured || !is_right) std::abort();  // #UD
    }
    void zero(int tile) {
        need(config.rows[tile] > 0);
        std::memset(bytes[tile], 0, sizeof bytes[tile]);
    }
    void load(int tile, const void* from, std::size_t stride) {
        zero(tile);
        for (int row = 0; row < config.rows[tile]; ++row)
            std::memcpy(bytes[tile][row], static_cast<const std::uint8_t*>(from) + row * stride,
                        config.row_nbytes[tile]);
    }
    void store(int tile, void* to, std::size_t stride) const {
        need(config.rows[tile] > 0);
        for (int row = 0; row < config.rows[tile]; ++row)
            std::memcpy(static_cast<std::uint8_t*>(to) + row * stride, bytes[tile][row],
                        config.row_nbytes[tile]);
    }
    // Unsigned rows `a` times signed codes `b`.
    void multiply(int sums, int a, int b) {
        const int num_rows = config.rows[sums], num_quads = config.row_nbytes[a] / 4,
                  num_outputs = config.row_nbytes[sums] / 4;
        need(config.rows[a] == num_rows && config.rows[b] == num_quads &&
             config.row_nbytes[b] == config.row_nbytes[sums]);
        for (int row = 0; row < num_rows; ++row)
            for (int quad = 0; quad < num_quads; ++quad)
                for (int n = 0; n < num_outputs; ++n) {
                    std::uint32_t sum;
                    std::memcpy(&sum, &bytes[sums][row][4 * n], 4);
                    for (int i = 0; i < 4; ++i)
                        sum += static_cast<std::uint32_t>(bytes[a][row][4 * quad + i] *
                                                          static_cast<std::int8_t>(bytes[b][quad][4 * n + i]));
                    std::memcpy(&bytes[sums][row][4 * n], &sum, 4);
                }
    }
};
inline thread_local EmulatedTiles emulated;
#define FORERUN_TILE_CONFIGURE(config) emulated.configure(config)
#define FORERUN_TILE_RELEASE() emulated.release()
#define FORERUN_TILE_ZERO(tile) emulated.zero(tile)
#define FORERUN_TILE_LOAD(tile, from, stride) emulated.load(tile, from, stride)
#define FORERUN_TILE_STORE(tile, to, stride) emulated.store(tile, to, stride)
#define FORERUN_TILE_SIGNED_CODES(sums, a, b) emulated.multiply(sums, a, b)

#else

#define FORERUN_TILE_CONFIGURE(config) _tile_loadconfig(&(config))
#define FORERUN_TILE_RELEASE() _tile_release()
#define FORERUN_TILE_ZERO(tile) _tile_zero(tile)
// Compilers do not know that it reads memory.
#define FORERUN_TILE_LOAD(tile, from, stride) \
    do {                                      \
        asm volatile("" ::: "memory");        \
        _tile_loadd(tile, from, stride);      \
    } while (false)
#define FORERUN_TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)
#define FORERUN_TILE_SIGNED_CODES(sums, a, b) _tile_dpbusd(sums, a, b)

#endif

// Tiles may be used while it lives; a thread that has released them is switched as fast as any other.
class TileUnit {
  public:
    TileUnit() {
        static constexpr TileConfig config;
        FORERUN_TILE_CONFIGURE(config);
    }
    ~TileUnit() { FORERUN_TILE_RELEASE(); }
    TileUnit(const TileUnit&) = delete;
    TileUnit& operator=(const TileUnit&) = delete;
};

}  // namespace forerun::FORERUN_ISA
