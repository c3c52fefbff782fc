// Attention to latents (MLA, DeepSeek-V2, arXiv 2405.04434): one key [latent | rotated part] for all heads,
// whose latent is the value, too. Head matrices turn queries into those of latents, and what is read of
// latents into outputs, for every row alike. Its phases:
//   latents, the key's rotated part, and queries or what they are made of -> of each row: norms, rotations,
//   the cache -> queries of latents, by head -> attention -> outputs, by head -> output projection

#include <algorithm>

#include "model/model.h"

namespace forerun {
namespace {

// Where in a row of projections its parts lie. Queries of all heads come first, as attention reads them.
struct LatentColumns {
    int key_dim, plain, key, made_of;
    std::size_t stride;

    LatentColumns(const LatentShape& latent, int num_heads)
        : key_dim(latent.rope_dim + latent.rank),
          plain(num_heads * key_dim),
          key(plain + num_heads * latent.query_dim),
          made_of(key + key_dim),
          stride(static_cast<std::size_t>(made_of) + latent.query_rank) {}
};

}  // namespace

std::size_t Decoder::latent_stride() const {
    return LatentColumns(shape_.latent, shape_.num_heads).stride;
}

void Decoder::lay_out_latent(Scratch& scratch) {
    const LatentShape& latent = shape_.latent;
    if (!latent.exists()) return;
    const int rows = shape_.num_heads * latent_rows();
    query_input_ = scratch.take_rows(latent.query_rank > 0 ? num_rows_ : 0, latent.query_rank);
    head_queries_ = scratch.take_rows(rows, latent.query_dim);
    head_read_ = scratch.take_rows(rows, latent.rank);
}

// The pieces of its phases before the output projection.
std::vector<int> Decoder::latent_pieces(int index) const {
    const Layer& layer = layers_[index];
    const int most = 4 * pool_.size(), rows = row_pieces(num_rows_), heads = shape_.num_heads,
              queries = layer.q.num_tiles() + layer.q_rope.num_tiles();
    int latents = layer.kv_a.num_tiles() + layer.k_rope.num_tiles();
    latents += shape_.latent.query_rank > 0 ? layer.q_a.num_tiles() : queries;
    std::vector<int> pieces{std::min(most, latents), rows};
    if (shape_.latent.query_rank > 0) pieces.insert(pieces.end(), {std::min(most, queries), rows});
    const int tasks = static_cast<int>(kinds_[layer.kind].tasks.size());
    pieces.insert(pieces.end(), {heads, tasks, heads, rows});
    return pieces;
}

void Decoder::run_latent(Worker& worker, int index) {
    const Layer& layer = layers_[index];
    const bool has_rank = shape_.latent.query_rank > 0;
    const int queries = layer.q.num_tiles() + layer.q_rope.num_tiles(),
              first = layer.kv_a.num_tiles() + layer.k_rope.num_tiles(), most = 4 * pool_.size(),
              latents = first + (has_rank ? layer.q_a.num_tiles() : queries);
    worker.each_and_rows(
        [&](int piece) { project_latents(index, Part(latents, piece, std::min(most, latents))); },
        num_rows_, [&](int row) { has_rank ? make_query_input(index, row) : place_latent(index, row); });
    if (has_rank)
        worker.each_and_rows(
            [&](int piece) {
                project_queries(index, Part(queries, piece, std::min(most, queries)), 0,
                                query_input_.of(layer.q));
            },
            num_rows_, [&](int row) { place_latent(index, row); });
    worker.each([&](int head) { absorb_head(index, head); });
    worker.each([&](int task) { attend_task(task, index, worker.thread); });
    worker.each_and_rows([&](int head) { read_head(index, head); }, num_rows_, [&](int row) {
        if (!layer.o.is_float()) quantize_row(layer.o, attended_.of(layer.o), row);
    });
    end_attention(worker, index);
}

// Some of the tiles of what rows are projected to.
void Decoder::project_latents(int index, const Part& tiles) {
    const Layer& layer = layers_[index];
    const LatentColumns at(shape_.latent, shape_.num_heads);
    const Columns parts[] = {
        {&layer.kv_a, at.key}, {&layer.k_rope, at.key + shape_.latent.rank}, {&layer.q_a, at.made_of}};
    const int before = project(parts, tiles, at.stride);
    if (shape_.latent.query_rank == 0) project_queries(index, tiles, before, normed_);
}

// Those of queries, which begin at tile `first_tile`: parts that are rotated come to their heads' places.
void Decoder::project_queries(int index, const Part& tiles, int first_tile, const Rows& from) {
    const Layer& layer = layers_[index];
    const LatentColumns at(shape_.latent, shape_.num_heads);
    const int plain = layer.q.num_tiles(), first = std::max(tiles.first - first_tile, 0),
              stop = tiles.stop - first_tile, rope_tiles = shape_.latent.rope_dim / kTile;
    if (first < std::min(stop, plain))
        kernels_.linear(layer.q, first, std::min(stop, plain) - first, from, 0, num_rows_,
                        {qkv_ + at.plain + first * kTile, at.stride});
    for (int tile = std::max(first - plain, 0), next; tile < stop - plain; tile = next) {
        const int head = tile / rope_tiles, inside = tile % rope_tiles;
        next = std::min((head + 1) * rope_tiles, stop - plain);
        kernels_.linear(layer.q_rope, tile, next - tile, from, 0, num_rows_,
                        {qkv_ + head * at.key_dim + shape_.latent.rank + inside * kTile, at.stride});
    }
}

// What a row's queries are made of, normed.
void Decoder::make_query_input(int index, int row) {
    const Layer& layer = layers_[index];
    const LatentColumns at(shape_.latent, shape_.num_heads);
    const int width = shape_.latent.query_rank;
    const Rows rows = query_input_.of(layer.q);
    float* x = rows.x + static_cast<std::size_t>(row) * width;
    kernels_.norm(qkv_ + row * at.stride + at.made_of, layer.q_a_norm, width, x);
    for (const Linear* reader : {&layer.q, &layer.q_rope})
        if (!reader->is_float()) return quantize(*reader, x, rows, row, 0, width);
}

// A row's key and latent go to the cache; its queries are rotated, and their plain parts laid out by head.
void Decoder::place_latent(int index, int row) {
    const Layer& layer = layers_[index];
    const LatentShape& latent = shape_.latent;
    const LatentColumns at(latent, shape_.num_heads);
    const Rope& rope = kinds_[layer.kind].rope;
    float* x = qkv_ + row * at.stride;
    float* key = x + at.key;
    kernels_.norm(key, layer.kv_a_norm, latent.rank, key);
    kernels_.rotate(rope, row, key + latent.rank);
    const KvHead head = cache_->head(index, segments_[row_segment_[row]].slot, 0);
    kernels_.write_key(head, cache_rows_[row], key);
    kernels_.write_value(head, cache_rows_[row], key);
    const Rows plain = head_queries_.of(layer.k_b);
    for (int h = 0; h < shape_.num_heads; ++h) {
        kernels_.rotate(rope, row, x + h * at.key_dim + latent.rank);
        put(layer.k_b, x + at.plain + h * latent.query_dim, plain, h * latent_rows() + row, 0,
            latent.query_dim);
    }
}

// A head's queries of latents, of all rows: then these are whole, and are scaled.
void Decoder::absorb_head(int index, int head) {
    const Layer& layer = layers_[index];
    const LatentShape& latent = shape_.latent;
    const LatentColumns at(latent, shape_.num_heads);
    const int tiles = latent.rank / kTile;
    float* first = qkv_ + head * at.key_dim;
    kernels_.linear(layer.k_b, head * tiles, tiles, head_queries_.of(layer.k_b), head * latent_rows(),
                    num_rows_, {first, at.stride});
    for (int row = 0; row < num_rows_; ++row) {
        float* query = first + row * at.stride;
        kernels_.scale(query, at.key_dim, query_scales_[row]);
        if (cache_->has_codes()) code_query(index, row, head, query);
    }
}

// What a row's heads have read of latents, laid out by head.
void Decoder::finish_latent(const AttentionUnit& unit, int row, int layer, Attended* states) {
    const Linear& reader = layers_[layer].v_b;
    const int rank = shape_.latent.rank;
    const Rows read = head_read_.of(reader);
    for (int h = 0; h < unit.num_heads; ++h) {
        const int place = (unit.head + h) * latent_rows() + row;
        float* out = read.x + static_cast<std::size_t>(place) * rank;
        kernels_.finish(states[h], rank, out);
        if (!reader.is_float()) quantize(reader, out, read, place, 0, rank);
    }
}

// A head's outputs, of all rows.
void Decoder::read_head(int index, int head) {
    const Layer& layer = layers_[index];
    const int dim = shape_.latent.value_dim, tiles = dim / kTile;
    const Rows to = attended_.of(layer.o);
    kernels_.linear(layer.v_b, head * tiles, tiles, head_read_.of(layer.v_b), head * latent_rows(),
                    num_rows_, {to.x + head * dim, static_cast<std::size_t>(to.width)});
}

}  // namespace forerun
