// Quotients of rows of one element, each of which is divided by its own magnitude. Part of vector_kernels.h; an
// operation as in vector_quotients.h.

namespace l1norm::cpu {
namespace {

// 1 of the element's sign; NaN for zeros, infinities and NaN.
template <typename Type>
struct Signs {
  using Element = typename Type::Element;
  using Bits = typename Typed<Element>::Bits;
  template <int vectors>
  using Result = typename VectorOf<Bits, sizeof(Element) < 8 && vectors % 2 == 0 ? kWide : kLanes>::type;

  static constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  static constexpr Bits kUlp = static_cast<Bits>(Bits{1} << Typed<Element>::kFraction);
  static constexpr Bits kInfinity = static_cast<Bits>(kSign - kUlp);
  static constexpr Bits kOne = static_cast<Bits>((kInfinity >> 1) & ~(kUlp - 1));
  static constexpr Bits kNaN = static_cast<Bits>(kInfinity | kUlp >> 1);

  template <int vectors>
  L1NORM_INLINE bool block(int64_t, const Element* x, Result<vectors>* y) const {
    using Vector = Result<vectors>;
    constexpr int kWidth = sizeof(Vector) / sizeof(Bits);
    for (int k = 0; k < vectors * kLanes / kWidth; ++k) {
      const Vector v = load<Vector>(x + k * kWidth);
      // Zeros rank above everything.
      const Vector special = as<Vector>((v & static_cast<Bits>(~kSign)) - Bits{1} >= static_cast<Bits>(kInfinity - 1));
      y[k] = (special & kNaN) | (~special & ((v & kSign) | kOne));
    }
    return true;
  }

  void each(int64_t, const Element*, Element*, int64_t) const {}
};

}  // namespace
}  // namespace l1norm::cpu
