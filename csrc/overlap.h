// Whether strided views share memory, decided exactly. Pure and host-only.
//
// Two elements coincide where a bounded integer combination of the strides equals the views' distance. The search
// tries each multiple of the largest stride and drops the branches that bounds or divisibility rule out, as NumPy's
// shares_memory does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace l1norm {

// coefficient * k for k in [0, bound]
struct Term {
  int64_t coefficient;
  int64_t bound;
};

class BoundedSum {
 public:
  explicit BoundedSum(std::vector<Term> terms) : terms_(std::move(terms)) {
    terms_.erase(
        std::remove_if(terms_.begin(), terms_.end(), [](const Term& t) { return t.coefficient == 0 || t.bound == 0; }),
        terms_.end());
    std::sort(terms_.begin(), terms_.end(), [](const Term& a, const Term& b) { return a.coefficient > b.coefficient; });
    const size_t n = terms_.size();
    largest_.assign(n + 1, 0);
    divisor_.assign(n + 1, 0);
    for (size_t i = n; i-- > 0;) {
      largest_[i] = largest_[i + 1] + terms_[i].coefficient * terms_[i].bound;
      divisor_[i] = std::gcd(divisor_[i + 1], terms_[i].coefficient);
    }
  }

  // Whether the terms can add up to target. True as well where the search gives up: callers refuse what may overlap.
  bool reaches(int64_t target) {
    steps_ = 0;
    return search(0, target);
  }

 private:
  static constexpr int64_t kMaxSteps = 1000000;

  bool search(size_t i, int64_t target) {
    if (target == 0) return true;
    if (target < 0 || target > largest_[i] || target % divisor_[i] != 0) return false;
    if (++steps_ > kMaxSteps) return true;
    const int64_t c = terms_[i].coefficient, rest = largest_[i + 1];
    const int64_t least = target > rest ? (target - rest + c - 1) / c : 0;
    for (int64_t k = std::min(terms_[i].bound, target / c); k >= least; --k) {
      if (search(i + 1, target - k * c)) return true;
    }
    return false;
  }

  std::vector<Term> terms_;
  std::vector<int64_t> largest_;  // the sum of the terms from i on, at most
  std::vector<int64_t> divisor_;  // of every sum of the terms from i on
  int64_t steps_ = 0;
};

// Views of one shape in one storage, the second starting `distance` elements after the first.
inline bool overlap(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides_a,
                    const std::vector<int64_t>& strides_b, int64_t distance) {
  std::vector<Term> terms;
  int64_t target = distance;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return false;
    // a's index counts up, b's counts down from its end, so that every coefficient is positive.
    terms.push_back({strides_a[d], sizes[d] - 1});
    terms.push_back({strides_b[d], sizes[d] - 1});
    target += strides_b[d] * (sizes[d] - 1);
  }
  return BoundedSum(std::move(terms)).reaches(target);
}

inline bool overlaps_itself(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  for (int64_t s : sizes) {
    if (s == 0) return false;
  }
  // Two indices that coincide differ in some dimension d, by at least one step; every other difference is signed.
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) continue;
    if (strides[d] == 0) return true;
    std::vector<Term> terms{{strides[d], sizes[d] - 2}};
    int64_t target = -strides[d];
    for (size_t e = 0; e < sizes.size(); ++e) {
      if (e == d) continue;
      terms.push_back({strides[e], 2 * (sizes[e] - 1)});
      target += strides[e] * (sizes[e] - 1);
    }
    if (BoundedSum(std::move(terms)).reaches(target)) return true;
  }
  return false;
}

}  // namespace l1norm
