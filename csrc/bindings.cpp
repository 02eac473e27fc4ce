// The module.
// torch's bundled pybind11 refuses a stable-ABI target; the one that is included here has nothing to do with torch.
#pragma push_macro("TORCH_TARGET_VERSION")
#undef TORCH_TARGET_VERSION
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#pragma pop_macro("TORCH_TARGET_VERSION")

#include <array>
#include <optional>
#include <stdexcept>
#include <vector>

#include "build_info.h"
#include "cuda/override.h"
#include "cuda/plan_signs.h"
#include "lattice.h"
#include "overlap.h"
#include "repeated.h"
#include "tensors.h"

namespace {

l1norm::Geometry geometry(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                          const std::vector<int64_t>& grad_strides, const std::vector<int64_t>& out_strides,
                          const std::vector<int64_t>& dims, const int64_t* denominator_strides = nullptr) {
  const int64_t rank = static_cast<int64_t>(sizes.size());
  const l1norm::Mask reduced = l1norm::reduced_dims(dims, rank);
  l1norm::Geometry g;
  if (!l1norm::make_geometry(static_cast<int>(rank), sizes.data(), strides.data(), grad_strides.data(),
                             out_strides.data(), denominator_strides, reduced.data(), g)) {
    throw std::runtime_error("more dimensions that cannot be merged than kernels walk");
  }
  return g;
}

// What kernels make of indices: {input, grad, output, denominator} of each of the rows, and of each of the elements.
pybind11::tuple offsets(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                        const std::vector<int64_t>& grad_strides, const std::vector<int64_t>& out_strides,
                        const std::vector<int64_t>& denominator_strides, const std::vector<int64_t>& dims,
                        const std::vector<int64_t>& rows, const std::vector<int64_t>& elements) {
  const l1norm::Geometry g = geometry(sizes, strides, grad_strides, out_strides, dims, denominator_strides.data());
  const auto all = [](const l1norm::Walk& walk, const std::vector<int64_t>& indices) {
    std::vector<std::array<int64_t, 4>> found;
    for (const int64_t i : indices) {
      const l1norm::Offsets o = walk.at(i);
      found.push_back({o.input, o.grad, o.output, o.denominator});
    }
    return found;
  };
  return pybind11::make_tuple(all(g.rows, rows), all(g.row, elements));
}

// What is copied of a gradient that repeats itself, and where rows, and elements in them, find theirs in the copy.
pybind11::tuple repeated(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                         const std::vector<int64_t>& grad_strides, const std::vector<int64_t>& out_strides,
                         const std::vector<int64_t>& dims, int64_t tile_rows, int64_t pack) {
  l1norm::Geometry g = geometry(sizes, strides, grad_strides, out_strides, dims);
  const l1norm::Repeated r = l1norm::take_repeated(g, INT64_MAX, pack);
  if (r.turns > 1 && tile_rows == 0) r.take_turns(g.rows);
  const auto all = [](const l1norm::Walk& walk) {
    std::vector<int64_t> found;
    for (int64_t i = 0; i < walk.count; ++i) found.push_back(walk.at(i).grad);
    return found;
  };
  return pybind11::make_tuple(r.elements, r.step, r.copies(tile_rows), all(g.rows), all(g.row));
}

// What a call's tensors are to the plan: rows, length, held, dense, and the lattice of packs of `pack` elements.
pybind11::dict shape(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                     const std::vector<int64_t>& out_strides, const std::vector<int64_t>& dims, int64_t pack,
                     bool aligned, bool alike, int64_t start) {
  const l1norm::Geometry g = geometry(sizes, strides, strides, out_strides, dims);
  pybind11::dict d;
  d["rows"] = g.rows.count;
  d["length"] = g.row.count;
  d["held"] = g.unit_stride();
  d["dense"] = g.dense();
  const l1norm::cuda::LatticeShape l =
      l1norm::cuda::shape_of(l1norm::make_lattice(g, pack, aligned, alike, start), pack);
  d["lattice"] = pybind11::make_tuple(l.units, l.steps, l.inner, l.columns, l.elements, l.along, l.skewed,
                                      l.interleaved, l.apart, l.run);
  d["run"] = g.run();
  d["turned"] = static_cast<int>(l.turned);
  const l1norm::Rounds& r = l.rounds;
  d["rounds"] = pybind11::make_tuple(r.period, r.repeats, r.runs, r.fold, r.apart);
  d["beside"] = pybind11::make_tuple(l.beside.columns, l.beside.gapless, l.beside.jump, l.beside.multiple);
  return d;
}

// What a launch asks memory for while it waits: runs, bytes of each, bytes from one to the next.
pybind11::tuple ahead(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                      const std::vector<int64_t>& dims, int64_t element_size, int64_t least_bytes, int64_t most_bytes) {
  const l1norm::Geometry g = geometry(sizes, strides, strides, strides, dims);
  const l1norm::Ahead a = l1norm::ahead_of(g, &l1norm::Offsets::input, element_size, least_bytes, most_bytes);
  return pybind11::make_tuple(a.runs, a.bytes, a.stride);
}

void put_stagger(pybind11::dict& d, const l1norm::Stagger& stagger) {
  if (stagger.groups == 0) return;
  d["staggered"] = stagger.groups;
  d["cycles_apart"] = stagger.cycles;
}

pybind11::dict plan(int64_t rows, int64_t length, int dtype, bool held, bool dense, bool aligned, int multiprocessors,
                    int threads_per_multiprocessor, int shared_bytes, int shared_bytes_per_multiprocessor,
                    int64_t l2_bytes, int max_cluster, int widest_cluster, double bytes_per_cycle, bool backward,
                    bool at_packs,
                    const std::tuple<int64_t, int64_t, int64_t, int, int, bool, bool, bool, int64_t, int64_t>& lattice,
                    const std::tuple<int64_t, bool, int64_t, int64_t>& beside, int64_t neighbours, int turned,
                    bool in_place, const std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>& rounds,
                    bool one_grad) {
  using namespace l1norm::cuda;
  const auto& [units, steps, inner, columns, elements, along, skewed, interleaved, apart, run] = lattice;
  const auto& [columns_beside, gapless, jump, multiple] = beside;
  const auto& [period, repeats, runs, fold, fold_apart] = rounds;
  const int64_t size = l1norm::element_size(static_cast<l1norm::DType>(dtype));
  const Shape shape{rows,
                    length,
                    static_cast<l1norm::DType>(dtype),
                    held,
                    dense,
                    aligned,
                    backward,
                    at_packs,
                    {units,
                     steps,
                     inner,
                     columns,
                     elements,
                     along,
                     size,
                     skewed,
                     interleaved,
                     apart,
                     run,
                     {columns_beside, gapless, jump, multiple},
                     static_cast<l1norm::Turned>(turned),
                     in_place,
                     {period, repeats, runs, fold, fold_apart}},
                    neighbours,
                    one_grad};
  const Plan p = make_plan(shape,
                           {multiprocessors, threads_per_multiprocessor, shared_bytes, shared_bytes_per_multiprocessor,
                            l2_bytes, max_cluster, widest_cluster, false, bytes_per_cycle},
                           wanted_kernel);
  pybind11::dict d;
  d["kernel"] = name(p.kernel);
  const auto put_relay = [&](const RelayPlan& relay) {
    d["chunks"] = relay.chunks;
    d["ahead"] = relay.ahead;
    d["kept"] = relay.kept;
    d["turns_back"] = relay.turns_back();
  };
  switch (p.kernel) {
    case Kernel::kTile:
      d["rows_a_warp"] = p.tile.rows;
      d["threads"] = p.tile.threads;
      d["packed"] = p.tile.packed;
      break;
    case Kernel::kWarp:
      d["lanes"] = p.warp.lanes;
      d["packs"] = p.warp.packs;
      d["threads"] = warp_kernel_threads(backward, size, p.warp.packs);
      break;
    case Kernel::kResident:
      d["threads"] = p.resident.threads;
      d["packs"] = p.resident.packs;
      d["shared_packs"] = p.resident.shared_packs;
      d["cluster"] = p.resident.cluster;
      break;
    case Kernel::kSplit:
      d["threads"] = p.split.threads;
      d["packs"] = p.split.packs;
      d["shared_packs"] = p.split.shared_packs;
      d["blocks_a_row"] = p.split.blocks_a_row;
      break;
    case Kernel::kRing:
      d["blocks_a_row"] = p.ring.blocks_a_row;
      d["groups"] = p.ring.groups;
      d["chunks"] = p.ring.chunks;
      d["chunk_bytes"] = p.ring.chunk_bytes;
      d["stages"] = p.ring.stages;
      d["on_way"] = p.ring.on_way;
      d["columns"] = p.ring.columns;
      d["threads"] = kRingThreads;
      break;
    case Kernel::kRelay:
      put_relay(p.relay);
      break;
    case Kernel::kGather:
      d["lanes"] = p.gather.lanes;
      d["width"] = p.gather.width;
      d["threads"] = p.gather.threads;
      d["shared_bytes"] = p.gather.shared_bytes();
      d["blocks"] = ceil_div(p.gather.tiles, p.gather.threads / 32);
      break;
    case Kernel::kRuns:
      d["lanes"] = p.runs.lanes;
      d["cuts"] = p.runs.cuts;
      d["packs"] = p.runs.packs;
      d["threads"] = p.runs.threads;
      d["cluster"] = p.runs.cluster;
      d["each"] = p.runs.each;
      put_relay(p.runs.relay);
      d["blocks"] = p.runs.blocks(rows);
      break;
    case Kernel::kColumnTile:
      d["lanes"] = p.column_tile.lanes;
      d["width"] = p.column_tile.width;
      d["segments"] = p.column_tile.segments;
      d["threads"] = p.column_tile.threads;
      d["tile_bytes"] = p.column_tile.tile_bytes;
      d["blocks"] = ceil_div(p.column_tile.tiles, p.column_tile.threads / 32);
      break;
    case Kernel::kSlab:
      d["lanes"] = p.slab.lanes;
      d["packs"] = p.slab.packs;
      d["turn"] = p.slab.turn;
      d["cluster"] = p.slab.cluster;
      d["chunks"] = p.slab.chunks;
      d["at_once"] = p.slab.at_once;
      d["threads"] = p.slab.threads;
      d["blocks"] = shape.lattice.slabs() * p.slab.cluster;
      break;
    case Kernel::kWarpColumns:
      d["packs"] = p.warp_columns.packs;
      d["team"] = p.warp_columns.team;
      d["lanes"] = p.warp_columns.lanes;
      d["warps"] = p.warp_columns.warps;
      d["threads"] = l1norm::cuda::kWarpColumnsThreads;
      d["blocks"] = l1norm::cuda::warp_columns_blocks(shape.lattice.slabs(), p.warp_columns);
      break;
    case Kernel::kStrided:
      d["lanes"] = p.strided.lanes;
      d["across"] = p.strided.across;
      d["width"] = p.strided.width;
      d["warps"] = p.strided.warps;
      d["packs"] = p.strided.packs;
      d["cluster"] = p.strided.cluster;
      d["whole"] = p.strided.whole;
      d["shared_packs"] = p.strided.shared_packs;
      d["interleaved"] = p.strided.interleaved;
      d["skewed"] = p.strided.skewed;
      d["own_sectors"] = p.strided.own_sectors;
      d["threads"] = strided_threads(p.strided);
      d["blocks"] = strided_grid(units, inner, l1norm::cuda::kPackBytes / size, p.strided);
      break;
    case Kernel::kStridedRelay:
      d["lanes"] = p.strided_relay.lanes;
      d["across"] = p.strided_relay.across;
      d["width"] = p.strided_relay.width;
      d["warps"] = p.strided_relay.warps;
      d["parts"] = p.strided_relay.parts;
      d["adders"] = p.strided_relay.adders;
      d["skewed"] = p.strided_relay.skewed;
      d["interleaved"] = p.strided_relay.interleaved;
      d["tiles"] = p.strided_relay.tiles;
      d["beside"] = p.strided_relay.beside;
      d["ahead"] = p.strided_relay.ahead;
      d["turns_back"] = p.strided_relay.turns_back;
      d["scratch_bytes"] = p.strided_relay.scratch_bytes;
      d["threads"] = p.strided_relay.warps * p.strided_relay.across * 32;
      d["blocks"] = 2 * (p.strided_relay.tiles / p.strided_relay.beside) * p.strided_relay.slots();
      break;
    case Kernel::kColumnRing:
      d["columns"] = p.column_ring.columns;
      d["whole"] = p.column_ring.whole;
      d["slots"] = p.column_ring.slots;
      d["clusters"] = p.column_ring.clusters;
      d["steps"] = p.column_ring.steps;
      d["teams"] = p.column_ring.teams;
      d["windows"] = p.column_ring.windows;
      d["scratch_bytes"] = p.column_ring.scratch_bytes;
      d["threads"] = p.column_ring.size(size, backward).threads();
      d["blocks"] = p.column_ring.clusters * l1norm::cuda::kWindowCluster;
      break;
    case Kernel::kTwoPass:
      d["threads"] = p.two_pass.threads;
      d["blocks"] = p.two_pass.blocks;
      break;
  }
  put_stagger(d, p.stagger);
  return d;
}

// None where other kernels are faster.
std::optional<pybind11::dict> plan_signs(int64_t rows, int64_t length, int dtype, int multiprocessors,
                                         int threads_per_multiprocessor, int shared_bytes,
                                         int shared_bytes_per_multiprocessor, int64_t l2_bytes, int max_cluster,
                                         int widest_cluster, double bytes_per_cycle) {
  using namespace l1norm::cuda;
  const int64_t size = l1norm::element_size(static_cast<l1norm::DType>(dtype));
  SignsPlan p;
  if (!l1norm::cuda::plan_signs(
          rows, length, size,
          {multiprocessors, threads_per_multiprocessor, shared_bytes, shared_bytes_per_multiprocessor, l2_bytes,
           max_cluster, widest_cluster, false, bytes_per_cycle},
          p)) {
    return std::nullopt;
  }
  pybind11::dict d;
  d["threads"] = p.threads;
  d["cluster"] = p.cluster;
  d["packs"] = p.packs;
  d["shared_bytes"] = sign_bytes(p.packs, size);
  put_stagger(d, p.stagger);
  return d;
}

void set_kernel(const std::string& name) {
  if (!l1norm::cuda::set_kernel(name.c_str())) throw pybind11::value_error("no kernel is called '" + name + "'");
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Kernels of l1norm, registered as torch.ops.l1norm.*; facts about the build.";
  m.def("build_info", &l1norm::build_info, "Facts about this binary and the processor it runs on.");
  m.def("overlap", &l1norm::overlap, pybind11::arg("sizes"), pybind11::arg("strides_a"), pybind11::arg("strides_b"),
        pybind11::arg("distance"),
        "Whether two strided views of one shape, `distance` elements apart in one storage, share an element.");
  m.def("overlaps_itself", &l1norm::overlaps_itself, pybind11::arg("sizes"), pybind11::arg("strides"),
        "Whether two indices of a strided view name one element.");
  m.def("offsets", &offsets, pybind11::arg("sizes"), pybind11::arg("strides"), pybind11::arg("grad_strides"),
        pybind11::arg("out_strides"), pybind11::arg("denominator_strides"), pybind11::arg("dims"),
        pybind11::arg("rows"), pybind11::arg("elements"),
        "Where rows start, and where elements lie in their row, in input, grad, output and denominator.");
  m.def("repeated", &repeated, pybind11::arg("sizes"), pybind11::arg("strides"), pybind11::arg("grad_strides"),
        pybind11::arg("out_strides"), pybind11::arg("dims"), pybind11::arg("tile_rows"), pybind11::arg("pack"),
        "Of a gradient that is the same for all rows: elements that are copied for kernels, their distance in the "
        "gradient, how often they are in the copy (for a kernel that takes so many rows at a time; 0: for one of packs "
        "of so many elements), and where rows, and elements in their row, lie in it.");
  m.def("shape", &shape, pybind11::arg("sizes"), pybind11::arg("strides"), pybind11::arg("out_strides"),
        pybind11::arg("dims"), pybind11::arg("pack") = 1, pybind11::arg("aligned") = false,
        pybind11::arg("alike") = true, pybind11::arg("start") = 0,
        "Rows and their length of a reduction over dims (none: all), and how they lie in memory, as plan() takes them. "
        "pack: elements of 16 bytes; aligned: both tensors start at a multiple of that; alike: as far from one; "
        "start: elements from a multiple of 256 bytes to the results'.");
  m.def("ahead", &ahead, pybind11::arg("sizes"), pybind11::arg("strides"), pybind11::arg("dims"),
        pybind11::arg("element_size"), pybind11::arg("least_bytes"), pybind11::arg("most_bytes"),
        "What a launch asks memory for of an operand while it waits: runs (0: nothing), bytes of each, bytes from one "
        "to the next. least_bytes: of a row, where rows lie apart; most_bytes: of all elements.");
  m.def(
      "plan", &plan, pybind11::arg("rows"), pybind11::arg("length"), pybind11::arg("dtype"), pybind11::arg("held"),
      pybind11::arg("dense"), pybind11::arg("aligned"), pybind11::kw_only(), pybind11::arg("multiprocessors"),
      pybind11::arg("threads_per_multiprocessor"), pybind11::arg("shared_bytes"),
      pybind11::arg("shared_bytes_per_multiprocessor"), pybind11::arg("l2_bytes"), pybind11::arg("max_cluster"),
      pybind11::arg("widest_cluster"), pybind11::arg("bytes_per_cycle"), pybind11::arg("backward") = false,
      pybind11::arg("at_packs") = false,
      pybind11::arg("lattice") = std::make_tuple(0, 0, 0, 1, 1, false, false, false, 0, 0),
      pybind11::arg("beside") = std::make_tuple(0, false, 0, 1), pybind11::arg("run") = 0, pybind11::arg("turned") = 0,
      pybind11::arg("in_place") = false, pybind11::arg("rounds") = std::make_tuple(0, 0, 1, 1, 1),
      pybind11::arg("one_grad") = false,
      "The CUDA kernel and launch that a shape gets on a device, of which memory reads so many bytes in a cycle of its "
      "multiprocessors (0: launches do not start staggered). dtype: its number in ATen; held: a row's elements "
      "are neighbours in memory and not cast; dense: rows follow each other without a gap; aligned: 16-byte packs of "
      "input and output, and of its gradient in backward, start at the same elements; at_packs: all of them start at a "
      "multiple of 16 bytes; lattice: "
      "units, steps, units side by side, columns of a unit, elements of a cell that are steps of their own, whether "
      "steps lie closer together than units, whether elements lie in packs that begin elsewhere from step to step, "
      "whether steps follow each other without a gap, bytes from step to step, steps before the walk over them jumps; "
      "beside: columns side by side in memory, whether nothing lies between all of them, elements that the walk over "
      "steps jumps besides, and those that the columns, and in the output the distances of others and the start from a "
      "multiple of 256 bytes, are multiples of; run: elements of each run of "
      "neighbours that a row has several of; turned: 1 where steps lie closer together than units in the input alone, "
      "2 where they do in the output alone; in_place: results are written where the input is read; rounds: columns "
      "that come round in a dense run, how often, runs of the same columns, how many of them are one row's, elements "
      "from one of those to the next; one_grad: gradients of results are one number.");
  m.def("plan_signs", &plan_signs, pybind11::arg("rows"), pybind11::arg("length"), pybind11::arg("dtype"),
        pybind11::kw_only(), pybind11::arg("multiprocessors"), pybind11::arg("threads_per_multiprocessor"),
        pybind11::arg("shared_bytes"), pybind11::arg("shared_bytes_per_multiprocessor"), pybind11::arg("l2_bytes"),
        pybind11::arg("max_cluster"), pybind11::arg("widest_cluster"), pybind11::arg("bytes_per_cycle"),
        "The launch of the kernel that knows gradients of one number, of rows of neighbours; None where other kernels "
        "are faster. As plan() has it.");
  m.def("set_kernel", &set_kernel, pybind11::arg("name"),
        "Run CUDA calls by the kernel 'tile', 'warp', 'resident', 'split', 'ring', 'relay', 'gather', 'runs', "
        "'column_tile', 'slab', 'warp_columns', 'strided', 'strided_relay', 'column_ring' or 'two_pass' where it can "
        "take them; '' lets the plan choose.");
}
