#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

namespace l1norm {

using Fact = std::variant<bool, std::string, std::vector<std::string>, std::optional<std::string>>;

// What this binary was built from and for, and which CPU kernels it picked.
std::unordered_map<std::string, Fact> build_info();

}  // namespace l1norm
