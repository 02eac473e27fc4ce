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

// The elements from i to n, of whole lines of the cache or of any; y may be an input. The second cache is asked for
// what lies `ahead` of them, but for 0.
template <bool streaming, bool whole = streaming, typename Operation, typename Element, typename... Inputs>
L1NORM_INLINE void run_body(const Operation& operation, int64_t i, int64_t n, int64_t ahead, Element* y,
                            const Inputs*... in) {
  constexpr int kLeast = whole ? 64 / static_cast<int>(sizeof(Element)) / kLanes : 1;  // vectors that may be left
  for (; i + kBlock * kLanes <= n; i += kBlock * kLanes) {
    if (ahead != 0) (ask_for<2>(in + i + ahead, kBlock * kLanes), ...);
    run_block<kBlock, streaming>(operation, i, y + i, (in + i)...);
  }
  if constexpr (kLeast <= 4) {
    if (i + 4 * kLanes <= n) run_block<4, streaming>(operation, i, y + i, (in + i)...), i += 4 * kLanes;
  }
  if constexpr (kLeast <= 2) {
    if (i + 2 * kLanes <= n) run_block<2, streaming>(operation, i, y + i, (in + i)...), i += 2 * kLanes;
  }
  if constexpr (kLeast <= 1) {
    if (i == n) return;
    if constexpr (whole) {
      run_block<1, streaming>(operation, i, y + i, (in + i)...);
    } else {
      run_rest(operation, i, n, y, in...);
    }
  }
}

// Where the first line of the cache of y's begins, of all of which elements are.
template <typename Element>
L1NORM_INLINE int64_t first_line(const Element* y) {
  return static_cast<int64_t>((-reinterpret_cast<uintptr_t>(y) & 63) / sizeof(Element));
}

// Whether n elements from y on are streamed past the cache where there is reason to.
template <typename Element>
L1NORM_INLINE bool repay_streaming(const Element* y, int64_t n) {
  return n >= kLeastStreamed<Element> || (first_line(y) == 0 && n % (64 / sizeof(Element)) == 0);
}

template <typename Operation, typename Element, typename... Inputs>
void run_line(const Operation& operation, int64_t n, int64_t ahead, bool streaming, Element* y, const Inputs*... in) {
  constexpr int64_t kLine = 64 / sizeof(Element);
  const int64_t head = first_line(y);
  const bool streams = streaming && repay_streaming(y, n);
  const int64_t begin = streams ? head : n, end = streams ? head + (n - head) / kLine * kLine : n;
  run_body<true>(operation, begin, end, ahead, y, in...);
  for (int64_t i = 0, to = begin;; i = end, to = n) {
    run_body<false>(operation, i, to, ahead, y, in...);
    if (to == n) break;
  }
}

// Streams lines of n elements that follow each other in windows, each from where a line of the cache begins in it to
// where one begins in the next: what the operation has behind a line's end is of the next one's begin.
template <typename Operation, typename Element, typename... Inputs>
L1NORM_INLINE void run_windows(const Operation& operation, int64_t lines, int64_t n, Element* y, const Inputs*... in) {
  constexpr int64_t kLine = 64 / sizeof(Element);
  const int64_t last = (lines - 1) * n, head = first_line(y), tail = first_line(y + last);
  const int64_t end = tail + (n - tail) / kLine * kLine;
  int64_t begin = head;
  for (int64_t l = 0; l <= last; l += n) {
    const int64_t next = first_line(y + l + n);
    run_body<true>(operation, begin, l == last ? end : n + next, 0, y + l, (in + l)...);
    begin = next;
  }
  for (int64_t l = 0, i = 0, to = head;; l = last, i = end, to = n) {
    run_body<false>(operation, i, to, 0, y + l, (in + l)...);
    if (to == n) break;
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
