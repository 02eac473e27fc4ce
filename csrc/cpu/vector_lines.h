// An operation on every element of a line, in vectors. Part of vector_kernels.h; vector_quotients.h says what an
// operation is.

namespace l1norm::cpu {
namespace {

template <typename Element>
L1NORM_INLINE const Element* elements(const void* p) {
  return static_cast<const Element*>(p);
}

template <typename Element>
L1NORM_INLINE Places<Element> places(const Lines& x) {
  return {elements<Element>(x.p), x.step};
}

template <typename Element>
L1NORM_INLINE Places<Element> group(const Lines& x, int64_t g) {
  return {elements<Element>(x.p) + g * x.group, x.step};
}

template <typename Element>
L1NORM_INLINE Element* group(const LinesTo& y, int64_t g) {
  return static_cast<Element*>(y.p) + g * y.group;
}

// Into the first cache, or the second.
template <int cache = 1, typename Element>
L1NORM_INLINE void ask_for(const Element* from, int64_t n) {
  constexpr int kLocality = 4 - cache;
  for (int64_t i = 0; i < n; i += 64 / static_cast<int64_t>(sizeof(Element)))
    __builtin_prefetch(from + i, 0, kLocality);
}

constexpr int64_t kAtOnce = 64;  // columns whose numbers stay in the first cache with them
constexpr int kBlock = 8;        // vectors that a step of a loop handles
// Elements of a line that repays streaming past the cache wherever it begins. What is left of lines of the cache at its
// ends costs more than it saves, of shorter ones as much as all their others save (rows of 333 float32 in two threads:
// 4.0 ms, streamed 6.1; 777: 4.3 and 4.3; 2049: 4.1 and 3.7).
template <typename Element>
constexpr int64_t kLeastStreamed = (3 << 10) / sizeof(Element);

template <int vectors, bool streaming, typename Operation, typename Element, typename... Inputs>
L1NORM_INLINE void run_block(const Operation& operation, int64_t i, Element* y, const Inputs*... in) {
  constexpr int kWidth = sizeof(typename Operation::template Result<vectors>) / sizeof(Element);
  typename Operation::template Result<vectors> results[vectors * kLanes / kWidth];
  if (!operation.template block<vectors>(i, in..., results)) return operation.each(i, in..., y, vectors * kLanes);
  for (int k = 0; k < vectors * kLanes / kWidth; ++k) store<streaming>(y + k * kWidth, results[k]);
}

// The elements from i to n, fewer than two vectors.
template <typename Operation, typename Element, typename... Inputs>
L1NORM_INLINE void run_rest(const Operation& operation, int64_t i, int64_t n, Element* y, const Inputs*... in) {
  if (i + kLanes <= n) run_block<1, false>(operation, i, y + i, (in + i)...), i += kLanes;
  if (i == n) return;
  Part<Element> rest;
  run_block<1, false>(operation, i, rest.elements, Part<Element>(in + i, n - i).elements...);
  rest.copy_to(y + i, n - i);
}

// The elements from i to n; y may be an input. The second cache is asked for what lies `ahead` of them, but for 0.
template <bool streaming, typename Operation, typename Element, typename... Inputs>
L1NORM_INLINE void run_body(const Operation& operation, int64_t i, int64_t n, int64_t ahead, Element* y,
                            const Inputs*... in) {
  for (; i + kBlock * kLanes <= n; i += kBlock * kLanes) {
    if (ahead != 0) (ask_for<2>(in + i + ahead, kBlock * kLanes), ...);
    run_block<kBlock, streaming>(operation, i, y + i, (in + i)...);
  }
  if (i + 4 * kLanes <= n) run_block<4, streaming>(operation, i, y + i, (in + i)...), i += 4 * kLanes;
  if (i + 2 * kLanes <= n) run_block<2, streaming>(operation, i, y + i, (in + i)...), i += 2 * kLanes;
  if (i < n) run_rest(operation, i, n, y, in...);
}

template <typename Operation, typename Element, typename... Inputs>
void run_line(const Operation& operation, int64_t n, int64_t ahead, bool streaming, Element* y, const Inputs*... in) {
  // Whole cache lines only.
  constexpr int64_t kLine = 64 / sizeof(Element);
  const int64_t head = static_cast<int64_t>((-reinterpret_cast<uintptr_t>(y) & 63) / sizeof(Element));
  if (streaming && (n >= kLeastStreamed<Element> || (head == 0 && n % kLine == 0))) {
    const int64_t end = head + (n - head) / kLine * kLine;
    run_body<false>(operation, 0, head, ahead, y, in...);
    run_body<true>(operation, head, end, ahead, y, in...);
    run_body<false>(operation, end, n, ahead, y, in...);
  } else {
    run_body<false>(operation, 0, n, ahead, y, in...);
  }
}

constexpr int64_t kShort = kBlock * kLanes;  // elements of lines that are not worth a call

// A line of at most kShort elements.
template <typename Operation, typename Element, typename... Inputs>
L1NORM_INLINE void run_short_line(const Operation& operation, int64_t n, bool streaming, Element* y,
                                  const Inputs*... in) {
  constexpr int64_t kStep = 2 * kLanes;
  const bool aligned = ((reinterpret_cast<uintptr_t>(y) | static_cast<uintptr_t>(n) * sizeof(Element)) & 63) == 0;
  int64_t i = 0;
  if (streaming && aligned) {
    for (; i + kStep <= n; i += kStep) run_block<2, true>(operation, i, y + i, (in + i)...);
  } else {
    for (; i + kStep <= n; i += kStep) run_block<2, false>(operation, i, y + i, (in + i)...);
  }
  if (i < n) run_rest(operation, i, n, y, in...);
}

// ahead: as run_body() has it, of lines that are not short.
template <typename Operation, typename Element, typename... Inputs>
L1NORM_INLINE void run_any_line(const Operation& operation, int64_t n, int64_t ahead, bool streaming, Element* y,
                                const Inputs*... in) {
  n <= kShort ? run_short_line(operation, n, streaming, y, in...) : run_line(operation, n, ahead, streaming, y, in...);
}

}  // namespace
}  // namespace l1norm::cpu
