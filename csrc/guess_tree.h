// One tree of guesses: the twin of drafters/_guess_tree.py, which explains it and is its oracle.

#pragma once

#include <vector>

#include "suffix_index.h"
#include "token_table.h"

namespace forerun {

struct GuessTree {
    std::vector<int> tokens, parents;
    std::vector<double> chances;
};

GuessTree grow_tree(const std::vector<int>& context, const FileTable* file, const LiveTable& live,
                    const std::vector<const SuffixIndex*>& indexes, int num_nodes,
                    double min_chance);

}  // namespace forerun
