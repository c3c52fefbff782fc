// The data the kernels share: packed weights, quantized rows, the kernel table. Views only; model.h
// owns the memory.
//
// R rows of a pass, N outputs and K inputs of a linear layer, D hidden width, H query heads, G kv
// heads, E head dim.

#pragma once

#include <cstddef>
#include <cstdint>

namespace forerun {

struct Convolution;  // of model/recurrence.h, like the next two
struct Recurrence;
struct StateChange;

inline constexpr int kTile = 16;      // outputs of a weight tile, lanes of the kernels
inline constexpr int kGroup = 32;     // activations that share a scale
inline constexpr int kCodeZero = 128;  // what flattened rows hold for 0
inline constexpr int kChunk = 64;     // positions of a softmax block, rows of a cache block
inline constexpr int kWidestInt4 = 512;  // dimensions of a head whose values are int4, at most
// Where the run of chunks that this one belongs to ends. Each run is attended to by itself, then their states are
// merged in order, so that threads can share long contexts: 2 chunks, more from 64 on, a sixteenth of those before
// at most.
constexpr int run_stop(int chunk) {
    int length = 2;
    while (32 * length <= chunk) length *= 2;
    return (chunk / length + 1) * length;
}
inline constexpr int kMaxPairs = 24;  // (row, query head) pairs that one attention unit serves

// How codes, scales and minima lie in a tile, which decides on the kernel; kernels/linear.h has the
// layouts.
enum class Tile : std::uint8_t {
    F32, F16, BF16, F8, Q4, Q4M, Q4Z, Q4K, Q5, Q5M, Q5K, Q6K, Q8, Q8M, Q8Z, T2, Q2K, Q3K, IQ4, T4K, T3K,
    T3P, FP4, NVFP4, Q4C, Q8C
};

// What a tile kernel reads of its rows: floats, int8 with a scale per group of 32, or flattened rows
// of int8 with one scale, which calibration has fixed or which is the row's own.
enum class Activations : std::uint8_t { Float, Int8Groups, Flat };

// Of a group of an output: nothing; an fp16 scale; with an fp16 minimum; with minus its zero point,
// a whole number as fp16; a byte of exponent; a byte of e4m3, times an fp32 factor of the output. Super: times fp16
// factors of 256 inputs, a byte each of scale and minimum; 4 bits each; a signed byte of scale; nothing.
// Single: an fp32 scale. Channel: one an output.
enum class Scales : std::uint8_t {
    None, Half, HalfMin, HalfZero, Exponent, Small, SuperMin, SuperNibbles, SuperSigned, SuperAlone, Single, Channel
};

// Whether a second fp16 stands beside each scale.
constexpr bool has_pair(Scales scales) {
    return scales == Scales::HalfMin || scales == Scales::HalfZero;
}
constexpr bool is_super(Scales scales) {
    return scales >= Scales::SuperMin && scales <= Scales::SuperAlone;
}
// Bytes of the scales of a group of 16 outputs.
constexpr int scales_nbytes(Scales scales) {
    switch (scales) {
        case Scales::Single:
        case Scales::HalfMin:
        case Scales::HalfZero: return 64;
        case Scales::Half:
        case Scales::SuperMin: return 32;
        case Scales::Exponent:
        case Scales::Small:
        case Scales::SuperNibbles:
        case Scales::SuperSigned: return 16;
        default: return 0;
    }
}
// Bytes of the factors of 256 inputs of 16 outputs.
constexpr int factors_nbytes(Scales scales) {
    return !is_super(scales) ? 0 : scales >= Scales::SuperSigned ? 32 : 64;
}
// Bytes before the codes of a tile.
constexpr int head_nbytes(Scales scales) {
    return scales == Scales::Channel ? 128 : scales == Scales::Small ? 64 : 0;
}

inline constexpr int kFloat8Group = 128;  // inputs that share the scale of e4m3 numbers

// One group of one output: codes, and fp16 scale and minimum (minus the zero point, Scales::HalfZero;
// whole numbers, Scales::Super; the byte of an exponent or of e4m3).
struct StoredGroup {
    std::uint8_t codes[kGroup];
    std::uint16_t scale, minimum;
};

inline constexpr int kInWords = -1;  // where the factor of IQ1_M lies: in the tops of its last words

// How the weights of a linear layer are stored: weight = scale * (code - zero) + minimum, or, with
// `values`, scale * values[code]. The table of all is in kernels/blocks.h.
struct WeightFormat {
    const char* name;  // GGUF's, in lower case, but q*_z, q*_c and f8 are our own
    Tile tile;
    Activations activations;
    int bits;   // of a value in a tile
    int group;  // inputs that share a scale; 1: floats
    int zero;
    Scales scales;
    int block, block_nbytes;  // values and bytes of a block in a checkpoint
    StoredGroup (*read)(const std::uint8_t* block, int group);  // one of a block's; null: floats
    int factors_at = 0;                   // where a block's fp16 factors lie; Super, or kInWords
    const std::int8_t* values = nullptr;  // of 16 codes
    float step = 1.0f;                    // what the factors are multiplied by

    bool is_float() const { return activations == Activations::Float; }
    bool is_flat() const { return activations == Activations::Flat; }
};

// How rows are rounded to int8 with one scale for all of them, and widened, so that no input is much
// larger than the others: FlattenQuant, arXiv 2402.17985. Input j becomes the whole number
// c = round(x inverse[j]), of which place j of the row holds what lies in -limit..limit. Behind the
// `num_in` places follow others, which hold more of some inputs: place num_in + i has
// clamp(c, high[i]) - clamp(c, low[i]) of input source[i]. Inputs are ascending there. The weights
// of an input are repeated for all its places. A row with a scale of its own has no such places:
// c = round(x inverse[j] / scale), the scale the largest |x inverse[j]| / 127. Such rows may be
// transformed before that, x inverse in groups of 32: see `hadamard` in kernels/rows.h.
struct Flattening {
    int num_in = 0, num_wide = 0;  // inputs, and places in whole groups; those at the end may be unused
    float limit = 0.0f;  // 0: the row has a scale of its own
    const float* inverse = nullptr;       // (num_in)
    const std::int32_t* source = nullptr;
    const float *low = nullptr, *high = nullptr;
    const std::int32_t* first = nullptr;  // (num_in / 32 + 1): the first i whose input is in a group
    bool uses_hadamard = false;

    bool is_by_row() const { return limit == 0.0f; }
};

// A linear layer's weights in tiles of 16 outputs, `tile_nbytes` apart; layout in kernels/linear.h.
struct Linear {
    const WeightFormat* format = nullptr;
    int num_out = 0, num_in = 0;
    std::size_t tile_nbytes = 0;
    const std::uint8_t* tiles = nullptr;
    const float* bias = nullptr;  // padded to whole tiles, or null
    const Flattening* flat = nullptr;  // of its rows, which are num_in = num_wide wide then
    const std::int32_t* order = nullptr;  // which column of a row (num_in) each input is; null: as they are

    int num_tiles() const { return (num_out + kTile - 1) / kTile; }
    bool is_float() const { return format->is_float(); }
    int num_read() const { return flat ? flat->num_in : num_in; }  // inputs before flattening
    bool is_by_row() const { return flat && flat->is_by_row(); }
    bool needs_whole_rows() const { return order || is_by_row(); }  // before they are rounded
};

inline constexpr int kRowsAside = 8;  // rows whose groups lie side by side

// A number of rows rounded up, so that the row behind them begins a new set of kRowsAside.
constexpr int padded_rows(int rows) { return (rows + kRowsAside - 1) / kRowsAside * kRowsAside; }

// Whether a kernel may read these rows in one call: they begin a set of kRowsAside, or end within one.
constexpr bool lie_together(int first, int count) {
    return first % kRowsAside == 0 || first % kRowsAside + count <= kRowsAside;
}

// R rows of activations, as floats, as int8 with a scale per group of 32, or both. A row never
// depends on another. The groups of 8 rows lie side by side, (R / 8, width / 32, 8): a kernel that
// computes some of them reads one stream. Flattened rows have only codes, + 128, of up to `wide`
// places, and the scale of the row, if it has one of its own, where that of its first group would be.
struct Rows {
    int width = 0;
    float* x = nullptr;        // (R, width)
    std::int8_t* q = nullptr;  // 32 a group
    float* scale = nullptr;    // 1 a group
    float* sum = nullptr;      // 1 a group: scale * sum of q, for the weights' minimum
    std::int32_t* half_sum = nullptr;  // 2 a group: sums of q, for the weights' zero point
    int wide = 0;                      // of q, at least `width`

    // The same memory for rows that a layer reads.
    Rows of(const Linear& reader) const {
        Rows rows = *this;
        rows.width = reader.num_read();
        rows.wide = reader.num_in;
        return rows;
    }
    // Where a row's first group lies; the next one is kRowsAside further.
    std::size_t first_group(int row) const {
        return static_cast<std::size_t>(row / kRowsAside) * (wide / kGroup) * kRowsAside +
               row % kRowsAside;
    }
};

// Where a linear layer's result goes: `out` (rows, stride), at the first row and tile that are
// computed; stored there, or added to what is there, times `multiplier`.
struct Output {
    float* out = nullptr;
    std::size_t stride = 0;
    bool accumulate = false;
    float multiplier = 1.0f;
};

struct Norm {
    const float* weight = nullptr;
    const float* bias = nullptr;  // layer norm only, may be null
    float eps = 0.0f;
    bool is_layer = false;  // else rms
};

// Relu2: max(x, 0)^2. SwigluOai: (clamp(up, -7, 7) + 1) g sigmoid(1.702 g), g = min(gate, 7).
enum class Activation : std::uint8_t { Silu, Gelu, GeluTanh, Relu, Relu2, SwigluOai };

struct Rope {
    const float* cos = nullptr;  // (R, half), of the rows' positions
    const float* sin = nullptr;
    int half = 0;  // rotated dimensions / 2
};

// One row that attends: it sees positions first..position. Positions below `base` lie in the cache
// row of that number; above it the path says where (null: also there).
struct Query {
    int row = 0, position = 0, first = 0, base = 0;
    const std::int32_t* path = nullptr;  // cache rows of positions base..position
};

// How keys or values are stored. Int8: codes with an fp16 scale per 32 dimensions of a key, and a scale
// per row and head of values. Int4: codes with an fp16 scale and minimum per row and 32 dimensions.
// kernels/kv.h has the layouts.
enum class KvForm : std::uint8_t { F32, F16, Int8, Int4 };
// Those of a cache: the same for both, or int8 keys and int4 values.
struct KvForms {
    KvForm keys = KvForm::F16, values = KvForm::F16;
};

// Groups of dimensions of a key that have factors of their own; the last one may be half.
constexpr int key_groups(int head_dim) { return (head_dim + kGroup - 1) / kGroup; }

// Bytes of a row of int4 values: codes, then an fp16 scale and minimum per 32.
constexpr std::size_t int4_row_nbytes(int head_dim) {
    return static_cast<std::size_t>(head_dim / 2 + head_dim / kGroup * 4);
}

// What a cache block holds of one kv head of a layer: 64 rows of keys and of values, and what their
// codes are multiplied by. Offsets in bytes.
struct KvPage {
    KvForms forms;
    std::size_t key_factors = 0, values = 0, value_factors = 0, nbytes = 0;
    bool shares_kv = false;  // values are the first numbers of their keys, which lie as values do

    bool has_codes() const { return forms.keys == KvForm::Int8 || forms.keys == KvForm::Int4; }
};

// The keys and values of one layer's kv head as one cache slot sees them.
struct KvHead {
    std::uint8_t* first_page = nullptr;    // of block 0
    std::size_t block_nbytes = 0;          // from a page to that of the next block
    const std::int32_t* blocks = nullptr;  // of the slot, in order
    const KvPage* page = nullptr;
    int head_dim = 0, value_dim = 0;  // of keys and of values

    // Numbers of a row of values, or of what they are part of.
    int value_width() const { return page->shares_kv ? head_dim : value_dim; }

    // Of the rows of a chunk. T is the type of the numbers.
    template <class T>
    T* keys(int chunk) const {
        return reinterpret_cast<T*>(at(chunk));
    }
    template <class T>
    T* key_factors(int chunk) const {
        return reinterpret_cast<T*>(at(chunk) + page->key_factors);
    }
    template <class T>
    T* values(int chunk) const {
        return reinterpret_cast<T*>(at(chunk) + page->values);
    }
    template <class T>
    T* value_factors(int chunk) const {
        return reinterpret_cast<T*>(at(chunk) + page->value_factors);
    }

  private:
    std::uint8_t* at(int chunk) const { return first_page + blocks[chunk] * block_nbytes; }
};

// Queries rounded to int8, with a scale per row and head: for keys that are codes.
struct CodedQueries {
    std::int8_t* codes = nullptr;   // (R, H, E)
    float* scales = nullptr;        // (R, H)
    std::int32_t* sums = nullptr;   // (R, H, E / 32): of 32 codes each
};

// Softmax state of one pair, and its weighted sum of values: largest score, sum of exponentials,
// output (value dim).
struct Attended {
    float largest, total;
    float* out;
};

struct Attention {
    KvHead head;
    const Query* queries = nullptr;  // of one segment, ascending in row
    int num_queries = 0, group = 0;  // query heads per kv head
    const float* q = nullptr;  // (R, q_stride), scaled, at the first query head of this kv head
    std::size_t q_stride = 0;
    CodedQueries coded;        // of all rows, if the cache holds codes
    int num_heads = 0, head_index = 0;  // query heads in all, and the first of these
    int last_chunk = 0;        // chunks up to here are likely to follow
    int row_stop = 0;          // cache rows in use by this segment, for paths
    float cap = 0.0f;          // scores s become cap tanh(s / cap); 0: they stay
    float* scratch = nullptr;  // kMaxPairs * (kChunk + rows above base, in whole tiles)
};

// How logits become scores whose largest one is a draw: factor x + Gumbel noise of the key and the token.
struct Perturbation {
    std::uint64_t key = 0;
    float factor = 1.0f;                // 1 / temperature
    const std::int32_t* ids = nullptr;  // the logits' tokens; null: first_token, first_token + 1, ...
    std::uint32_t first_token = 0;
};

// One instruction set's kernels.
struct Kernels {
    const char* name;
    // Stored rows of a tile (count), `row_nbytes` apart, into its bytes; formats of integers alone.
    void (*pack_rows)(const Linear&, int count, const std::uint8_t* rows, std::size_t row_nbytes,
                      std::uint8_t* tile);
    void (*linear)(const Linear&, int tile, int num_tiles, const Rows&, int row, int num_rows,
                   const Output&);
    void (*quantize)(const float* x, const Rows&, int row, int column, int count);
    void (*flatten)(const float* x, const Flattening&, const Rows&, int row, int column, int count);
    void (*flatten_by_row)(const float* x, const Flattening&, const Rows&, int row);
    void (*norm)(const float* x, const Norm&, int width, float* out);
    void (*activate)(Activation, const float* gate, const float* up, int count,
                     float* out);  // up may be null
    // x times sigmoid(gate).
    void (*gate)(const float* gate, const float* x, int count, float* out);
    void (*rotate)(const Rope&, int row, float* head);
    void (*scale)(float* x, int count, float factor);
    // x becomes limit tanh(x / limit).
    void (*cap)(float* x, int count, float limit);
    // The sum of weight e^(x - largest) over x (count), in whole tiles; weight null: ones. An
    // infinite `largest` is left out of the exponent.
    float (*exp_sum)(const float* x, const float* weight, int count, float* largest);
    // The first of x[first..count) that is not below the limit, count if none. Reads up to 15 more.
    int (*find)(const float* x, int first, int count, float limit);
    // The noise of tokens (count).
    void (*noise)(std::uint64_t key, const std::int32_t* ids, int count, float* out);
    // The first of x[first..count) whose score is not below the limit, count if none. Reads whole vectors of x
    // and ids.
    int (*find_score)(const Perturbation&, const float* x, int first, int count, float limit,
                      float* score);
    // One query head (E): codes, its scale, and sums of 32 codes each.
    void (*quantize_query)(const float* x, int head_dim, std::int8_t* codes, float* scale,
                           std::int32_t* sums);
    void (*write_key)(const KvHead&, int slot_row, const float* k);
    void (*write_value)(const KvHead&, int slot_row, const float* v);
    // Attends to the keys of chunks first..stop: the states of all pairs (query-major).
    void (*attend)(const Attention&, int first, int stop, Attended* states);
    void (*merge)(const Attended& from, Attended& into, int head_dim);
    void (*finish)(const Attended&, int head_dim, float* out);
    // One row's channels (count) from short causal convolutions.
    void (*convolve)(const Convolution&, int count, float* out);
    // Scores (num_x, stride) of vectors x with keys (num_tiles, dim, 16).
    void (*dot_keys)(const float* keys, int num_tiles, int dim, const float* const* x, int num_x,
                     float* out, std::size_t stride);
    void (*recur)(const Recurrence&);
    void (*change_state)(const StateChange&);
    std::int64_t (*peak)(int num_rounds, std::int32_t* kept);
    std::int64_t (*float_peak)(int num_rounds, std::int32_t* kept);
};

// A whole row, its columns in the order of a layer's inputs.
inline void quantize_in_order(const Kernels& kernels, const Linear& reader, const float* x, const Rows& rows,
                              int row) {
    constexpr int most = 8 * kGroup;
    float ordered[most];
    for (int first = 0; first < reader.num_in; first += most) {
        const int count = reader.num_in - first < most ? reader.num_in - first : most;
        for (int i = 0; i < count; ++i) ordered[i] = x[reader.order[first + i]];
        kernels.quantize(ordered, rows, row, first, count);
    }
}

// Columns of a row, as a layer that reads it needs them; of one that needs whole rows, all of it.
inline void quantize(const Kernels& kernels, const Linear& reader, const float* x, const Rows& rows,
                     int row, int column, int count) {
    if (reader.order)
        quantize_in_order(kernels, reader, x, rows, row);
    else if (reader.is_by_row())
        kernels.flatten_by_row(x, *reader.flat, rows, row);
    else if (reader.flat)
        kernels.flatten(x, *reader.flat, rows, row, column, count);
    else
        kernels.quantize(x, rows, row, column, count);
}

namespace portable {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avxvnni {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx512_amx {
// `linear` of flattened rows, more than kRowsAside of them from a multiple of it on, by tiles.
void flat_linear(const Linear&, int tile, int num_tiles, const Rows&, int row, int num_rows, const Output&);
}
namespace neon {
extern const Kernels kernels;
}
namespace neon_i8mm {
extern const Kernels kernels;
}

}  // namespace forerun
